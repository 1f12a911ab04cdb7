"""The service as the container runs it: a user without a name or home, and nothing writable but state and /tmp."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from clients import RolloutGroup, SelectorClient

USER = 10001

# The state directory is seen at /srv, which every Linux has; all else of this machine can be looked at only. What may
# be read does not matter here, and an interpreter may be in somebody's home: hence the one capability that is left.
_CONTAINED = r"""
set -e
mount --bind "$1" /srv
mount -o remount,bind,ro /
mount -t tmpfs -o mode=1777 tmpfs /tmp
shift
reading=+dac_read_search
exec setpriv --reuid="$1" --regid="$1" --clear-groups --no-new-privs --bounding-set=-all,$reading \
    --inh-caps=-all,$reading --ambient-caps=-all,$reading env --ignore-environment "${@:2}"
"""


@pytest.mark.slow
@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0 or None in map(shutil.which, ("unshare", "setpriv", "bash")),
    reason="needs root and Linux to mount a read-only root",
)
def test_nothing_is_written_outside_the_state_directory(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    os.chown(state, USER, USER)
    # As the Dockerfile has it; no HOME.
    environment = [f"PATH={os.environ['PATH']}", "HF_HUB_OFFLINE=1", "PYTHONDONTWRITEBYTECODE=1", "PYTHONUNBUFFERED=1"]
    root = Path(__file__).resolve().parents[2]
    if root.is_relative_to("/tmp") or root.is_relative_to("/srv"):
        pytest.skip("NOT CHECKED: the clone lies below /tmp or /srv, which are hidden from the service")
    serve = [sys.executable, "-m", "selector", "serve", "--listen=127.0.0.1:0", "--metrics-listen=127.0.0.1:0"]
    contained = ["unshare", "--mount", "--propagation", "private", "bash", "-c", _CONTAINED, "contained", str(state)]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [*contained, str(USER), *environment, *serve, "--state-dir=/srv"],
            cwd=root,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    try:
        assert process.stdout is not None
        found = re.match(r"selector: serving grpc=(\S+)", process.stdout.readline())
        assert found, (tmp_path / "log").read_text()
        inside = Path(f"/proc/{process.pid}")
        mounts = [line.split() for line in (inside / "mounts").read_text().splitlines()]
        assert "ro" in next(options.split(",") for _, target, _, options, *_ in reversed(mounts) if target == "/")
        assert inside.stat().st_uid == USER
        with SelectorClient(found[1], "a") as client:
            client.create_run({"group_size": 2})
            # The packaged encoder embeds these.
            client.register_prompts(["a", "b"], texts=["What is 1 + 1?", "What is 2 + 2?"])
            batch = client.select_batch(0, 2)
            client.report_outcomes(0, {prompt_id: [0.0, 1.0] for prompt_id in batch.prompt_ids})
            group = RolloutGroup.from_arrays(
                prompt_id="a",
                policy_version=0,
                prompt_token_ids=[1],
                response_token_ids=[[2], [3]],
                behavior_log_probs=[[-0.5], [-0.5]],
                rewards=[0.0, 1.0],
                outcomes=[0.0, 1.0],
            )
            assert client.push_rollouts(0, [group]).stored == 1
            assert client.get_run().embedding_width > 0
        # torch makes an empty folder there when it is imported, and fails without a place for it.
        assert [path for path in (inside / "root" / "tmp").rglob("*") if not path.is_dir()] == []
    finally:
        process.terminate()
        code = process.wait(60)
        if process.stdout is not None:
            process.stdout.close()
    assert code == 0, (tmp_path / "log").read_text()
    assert {path.name for path in state.iterdir()} >= {"state.db", "embeddings", "replay"}
