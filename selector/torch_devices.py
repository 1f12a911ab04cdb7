"""Whether torch can compute on a device, asked before anything that takes long. torch is imported when it is asked."""

from __future__ import annotations


def unusable(device: str) -> str | None:
    """Why it cannot, beginning with the device; None = it can."""
    try:
        import torch
    except ModuleNotFoundError:
        return f"{device} needs torch, which is not installed"
    try:
        found = torch.device(device)
    except RuntimeError:
        return f"{device} is no device of torch's: expected cpu, cuda, cuda:N, mps or another that it knows"
    if found.type == "cuda":
        if torch.version.cuda is None:
            return (
                f"{device} needs a torch with CUDA; torch {torch.__version__} is built without: for Linux, "
                "pip install --force-reinstall torch from PyPI, without an index of CPU builds, gets one"
            )
        if not torch.cuda.is_available():
            return f"{device} needs an NVIDIA GPU and its driver; torch {torch.__version__} sees none"
        if (found.index or 0) >= torch.cuda.device_count():
            return f"{device} is not there; torch sees {torch.cuda.device_count()} GPUs"
    try:
        torch.zeros(1, device=found).cpu()
    except (RuntimeError, AssertionError, ImportError, NotImplementedError) as error:
        reason = str(error).strip().partition("\n")[0]
        return f"{device} cannot be used: {reason}"
    return None
