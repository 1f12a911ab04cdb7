"""What an adapter makes sure of before a training begins, because its absence would only show as bad results.

Every check raises ``AdapterError``, which names the option, what was expected and what was found.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from importlib import metadata
from typing import Any

_RELEASE = re.compile(r"\d+(?:\.\d+)*")
# More would hide the sentence they stand in.
_SHOWN = 5


class AdapterError(RuntimeError):
    """The trainer is set up so that selection or replay would silently do something else."""


def expect(option: str, found: Any, wanted: Any, why: str) -> None:
    """``found`` must equal ``wanted``, or be one of them where ``wanted`` is a set.

    Raises:
        AdapterError: it does not.
    """
    if found in wanted if isinstance(wanted, (set, frozenset)) else found == wanted:
        return
    told = " or ".join(sorted(map(repr, wanted))) if isinstance(wanted, (set, frozenset)) else repr(wanted)
    raise AdapterError(f"{option}: expected {told}, got {found!r}: {why}")


def supported_version(package: str, at_least: str, below: str | None = None, installed: str | None = None) -> None:
    """The trainer's release must be one that this adapter is tested with: at_least <= release < below.

    Args:
        installed: the release; None = ask the installed package.

    Raises:
        AdapterError: it is not, or the package is not installed.
    """
    wanted = f"{package} >= {at_least}" + (f", < {below}" if below else "")
    if installed is None:
        try:
            installed = metadata.version(package)
        except metadata.PackageNotFoundError:
            raise AdapterError(f"{package}: expected {wanted}, but it is not installed") from None
    release = _release(installed)
    if release < _release(at_least) or (below is not None and release >= _release(below)):
        raise AdapterError(f"{package}: expected {wanted}, got {installed}: its hooks may have moved")


def accepts(function: Callable[..., Any], name: str, parameters: Iterable[str]) -> None:
    """A hook that is overridden must still take these parameters, in this order.

    Raises:
        AdapterError: it does not.
    """
    wanted, found = list(parameters), [each for each in inspect.signature(function).parameters if each != "self"]
    if found != wanted:
        raise AdapterError(f"{name}: expected the parameters {wanted}, got {found}: this release moved the hook")


def unique_ids(prompt_ids: Collection[str], source: str) -> None:
    """Prompt ids must differ.

    Args:
        source: where they come from, for the message.

    Raises:
        AdapterError: some do not; shows the most frequent ones.
    """
    counts: dict[str, int] = {}
    for prompt_id in prompt_ids:
        counts[prompt_id] = counts.get(prompt_id, 0) + 1
    repeated = sorted((each for each in counts.items() if each[1] > 1), key=lambda each: -each[1])
    if repeated:
        shown = ", ".join(f"{prompt_id!r} {count} times" for prompt_id, count in repeated[:_SHOWN])
        raise AdapterError(
            f"{source}: expected an id of its own for each of {len(prompt_ids)} prompts, got {len(counts)}: {shown}"
            f"{', …' if len(repeated) > _SHOWN else ''}"
        )


def agreed(given: Mapping[str, Any], own: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A section of the run's config with what the trainer's own settings say filled in.

    Raises:
        AdapterError: the user's section says otherwise.
    """
    for name, value in own.items():
        stated = given.get(name)
        if stated is not None and stated != value:
            raise AdapterError(f"{where}.{name}: the run says {stated!r}, the trainer {value!r}; leave it out here")
    return {**given, **own}


def _release(version: str) -> tuple[int, ...]:
    found = _RELEASE.match(version)
    if not found:
        raise AdapterError(f"version: expected a release such as 1.16.0, got {version!r}")
    numbers = [int(part) for part in found.group().split(".")]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)
