"""What the audit says of reports in pip-audit's own form; whether the services can be reached is not tested."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from scripts.audit import Ask, Findings, audit, findings, installed

PACKAGES = {"click": "8.5.1", "torch": "2.9.0", "urllib3": "1.26.4"}

CLEAN = {"name": "click", "version": "8.5.1", "vulns": []}
SKIPPED = {"name": "torch", "skip_reason": "Dependency not found on PyPI and could not be audited: torch (2.9.0)"}
VULNERABLE = {
    "name": "urllib3",
    "version": "1.26.4",
    "vulns": [
        {
            "id": "PYSEC-2021-108",
            "fix_versions": ["1.26.5"],
            "aliases": ["CVE-2021-33503", "GHSA-q2q7-5pp4-w6pg"],
            "description": "Catastrophic backtracking in the URL authority parser.",
        }
    ],
}


def answering(**reports: Any) -> Ask:
    """A service's report by its name; one that has none cannot be reached."""

    def ask(service: str, packages: Mapping[str, str]) -> Findings | None:
        assert packages == PACKAGES
        report = reports.get(service)
        return None if report is None else findings({"dependencies": report, "fixes": []})

    return ask


def test_a_vulnerable_package_fails_and_says_what_fixes_it() -> None:
    code, said = audit(PACKAGES, answering(pypi=[CLEAN, SKIPPED, VULNERABLE]))
    assert code == 1
    line = "VULNERABLE: urllib3 1.26.4: PYSEC-2021-108, CVE-2021-33503, GHSA-q2q7-5pp4-w6pg; fixed in 1.26.5"
    assert line in said.splitlines()
    assert "NOT AUDITED: torch 2.9.0" in said
    assert said.endswith("audit: 2 of 3 packages looked up, 1 known vulnerabilities")


def test_a_vulnerability_without_a_fix_says_so() -> None:
    unfixed = {**VULNERABLE, "vulns": [{"id": "X-1", "fix_versions": []}]}
    code, said = audit(PACKAGES, answering(pypi=[CLEAN, unfixed]))
    assert (code, "urllib3 1.26.4: X-1; fixed in no release yet" in said) == (1, True)


def test_what_was_skipped_is_not_called_clean() -> None:
    code, said = audit(PACKAGES, answering(pypi=[CLEAN, SKIPPED]))
    assert code == 0
    assert [line.split(":")[0] for line in said.splitlines()] == ["NOT AUDITED", "NOT AUDITED", "audit"]
    assert "torch 2.9.0: Dependency not found on PyPI" in said
    assert "urllib3 1.26.4: not in the answer" in said
    assert said.endswith("1 of 3 packages looked up, no known vulnerabilities")


@pytest.mark.parametrize(
    "reports",
    [{}, {"pypi": [SKIPPED, {**SKIPPED, "name": "click"}, {**SKIPPED, "name": "urllib3"}]}, {"pypi": []}, {"osv": []}],
)
def test_nothing_audited_is_said_loudly_and_does_not_fail(reports: dict[str, Any]) -> None:
    code, said = audit(PACKAGES, answering(**reports))
    assert code == 0
    assert "NOTHING WAS AUDITED: none of the 3 packages" in said
    assert said.startswith("####") and said.endswith("####")
    assert "no known" not in said.lower()


def test_the_second_service_is_asked_when_the_first_knows_nothing() -> None:
    assert audit(PACKAGES, answering(pypi=[SKIPPED], osv=[VULNERABLE]))[0] == 1
    assert audit(PACKAGES, answering(osv=[VULNERABLE]))[0] == 1
    # One that knows something is enough.
    assert audit(PACKAGES, answering(pypi=[CLEAN], osv=[VULNERABLE]))[0] == 0


def test_packages_are_those_that_are_installed_but_for_ourselves() -> None:
    listed = [
        {"name": "PyYAML", "version": "6.0.3"},
        {"name": "torch", "version": "2.9.0+cpu"},
        {"name": "curriculum-selector", "version": "0.1", "editable_project_location": "/somewhere"},
    ]
    assert installed(listed) == {"pyyaml": "6.0.3", "torch": "2.9.0"}
