"""Looks every installed package up among the known vulnerabilities; ``make audit``, in an environment of its own.

============================================================  =======================================  =========
an advisory service answers                                   says                                     exit code
============================================================  =======================================  =========
that a package is vulnerable                                  which, and what fixes it                 1
for every package, and none is vulnerable                     so                                       0
for some packages, and none of them is vulnerable             so, and which were NOT AUDITED           0
for none, or cannot be reached                                in a frame that NOTHING WAS AUDITED      0
============================================================  =======================================  =========

pip-audit itself says "No known vulnerabilities found" of packages that it has not found and thus not looked at; here
they count as not audited. The second service is asked when the first knows nothing at all, as behind a mirror.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SERVICES = ("pypi", "osv")

# How pip-audit, requests and urllib3 say that nobody answered; anything else that goes wrong is a defect of the audit.
_UNREACHABLE = re.compile(
    r"ConnectionError|ConnectTimeout|ReadTimeout|Could not connect|Max retries exceeded|HTTPError"
)

Ask = Callable[[str, Mapping[str, str]], "Findings | None"]


@dataclass(frozen=True)
class Findings:
    """What a service said.

    Attributes:
        audited: packages that it looked up.
        skipped: package -> why it was not looked up.
        vulnerable: a line for each vulnerability.
    """

    audited: tuple[str, ...] = ()
    skipped: Mapping[str, str] = field(default_factory=dict)
    vulnerable: tuple[str, ...] = ()


def findings(report: Any) -> Findings:
    """Read pip-audit's JSON."""
    audited: list[str] = []
    skipped: dict[str, str] = {}
    vulnerable: list[str] = []
    for package in report["dependencies"]:
        name = package["name"]
        if "skip_reason" in package:
            skipped[name] = package["skip_reason"]
            continue
        audited.append(name)
        for found in package["vulns"]:
            known_as = ", ".join([found["id"], *found.get("aliases", [])])
            fixed = ", ".join(found["fix_versions"]) or "no release yet"
            vulnerable.append(f"{name} {package['version']}: {known_as}; fixed in {fixed}")
    return Findings(tuple(audited), skipped, tuple(vulnerable))


def audit(packages: Mapping[str, str], ask: Ask) -> tuple[int, str]:
    """Exit code and what to say about packages (name -> version).

    Args:
        ask: a service's findings about packages; None = it cannot be reached.
    """
    found: Findings | None = None
    for service in SERVICES:
        found = ask(service, packages)
        if found is not None and found.audited:
            break
    if found is None or not found.audited:
        return 0, _framed(
            f"NOTHING WAS AUDITED: none of the {len(packages)} packages was looked up.",
            f"No advisory service ({', '.join(SERVICES)}) can be reached from here, or none knows the packages.",
            "Run `make audit` on a machine with access to the internet.",
        )
    unseen = {name: found.skipped.get(name, "not in the answer") for name in packages if name not in found.audited}
    lines = [f"VULNERABLE: {line}" for line in found.vulnerable]
    lines += [f"NOT AUDITED: {name} {packages[name]}: {why}" for name, why in sorted(unseen.items())]
    number = f"{len(found.vulnerable)} known" if found.vulnerable else "no known"
    lines.append(f"audit: {len(found.audited)} of {len(packages)} packages looked up, {number} vulnerabilities")
    return (1 if found.vulnerable else 0), "\n".join(lines)


def installed(listed: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Packages of ``pip list --format=json``, without ourselves.

    A local version, such as torch's ``+cpu``, is the public one built otherwise, and only that is in advisories.
    """
    return {
        package["name"].lower(): package["version"].partition("+")[0]
        for package in listed
        if "editable_project_location" not in package
    }


def _framed(*lines: str) -> str:
    rule = "#" * (max(map(len, lines)) + 4)
    return "\n".join([rule, *(f"# {line}" for line in lines), rule])


def _pip_audit(service: str, packages: Mapping[str, str]) -> Findings | None:
    with tempfile.TemporaryDirectory() as folder:
        pins = Path(folder) / "requirements.txt"
        pins.write_text("".join(f"{name}=={version}\n" for name, version in packages.items()), encoding="utf-8")
        command = [sys.executable, "-m", "pip_audit", "--vulnerability-service", service, "--requirement", str(pins)]
        command += ["--no-deps", "--disable-pip", "--format", "json", "--progress-spinner", "off"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.stdout.startswith("{"):
        return findings(json.loads(done.stdout))
    if _UNREACHABLE.search(done.stderr):
        return None
    raise SystemExit(f"audit: pip-audit failed ({done.returncode}):\n{done.stderr}")


def main(python: str) -> int:
    """Audit what is installed beside an interpreter."""
    command = [python, "-m", "pip", "list", "--format", "json", "--disable-pip-version-check"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True)
    code, text = audit(installed(json.loads(listed.stdout)), _pip_audit)
    sys.stdout.write(text + "\n")
    return code


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: audit.py PYTHON")
    raise SystemExit(main(sys.argv[1]))
