"""Lines of limits.conf that win over ours: foreseen as the real pam_limits takes them, and named by plan and apply."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from stage import NEEDS, staged

from torchtune_sys.host.tree import below
from torchtune_sys.model.actions import Limit
from torchtune_sys.model.plan_context import PlanContext
from torchtune_sys.probes.plan_context import limit_files
from torchtune_sys.remediation.plan.limit_lines import winners

pytestmark = NEEDS
OURS = "* hard nofile 15000\nroot hard nofile 15000\n"
CASES = {
    "zz.conf": [
        "* hard nofile 700",
        "root hard nofile 700",
        "root - nofile 700",
        "* HARD NOFILE 700",
        "* - nofile\\t700 # few",
        "* hard nofile many",
        "* hard nofile 16000",
        "@tt-group hard nofile 700",
    ],
    "10.conf": [
        "* hard nofile 700",
        "root hard nofile 700",
        "tt-user hard nofile 700",
        "@tt-group hard nofile 700",
    ],
}
"""File and line; whom it reaches is asked of pam_limits by logging in."""


@pytest.mark.skipif(shutil.which("su") is None or not Path("/etc/pam.d/su").exists(), reason="needs su")
def test_as_pam_limits_takes_them(tmp_path: Path) -> None:
    tries = "".join(f"try {name} '{line}'\n" for name, lines in CASES.items() for line in lines)
    script = f"""
    D=/etc/security/limits.d; rm -f $D/*; ulimit -n 20000
    printf '{OURS.replace(chr(10), chr(92) + "n")}' > $D/99-torchtune-sys.conf
    grep -q pam_limits /etc/pam.d/su || echo 'session required pam_limits.so' >> /etc/pam.d/su
    useradd -M -N -s /bin/sh tt-user; groupadd tt-group; usermod -aG tt-group tt-user
    try() {{ printf "$2\\n" > $D/$1; echo "held $(su tt-user -c 'ulimit -Hn') $(su root -c 'ulimit -Hn')"; rm $D/$1; }}
    {tries}
    """
    told = [line.split()[1:] for line in staged(tmp_path, script).splitlines() if line.startswith("held ")]
    cases = [(name, line) for name, lines in CASES.items() for line in lines]
    assert len(told) == len(cases)
    for (name, line), (user, root) in zip(cases, told, strict=True):
        found = [
            won.who for won in winners(context(tmp_path, name, line.replace("\\t", "\t")), Limit(item="nofile", target="15000"))
        ]
        assert bool(found) == ("700" in (user, root)), (name, line, user, root)


def context(folder: Path, name: str, line: str) -> PlanContext:
    place = folder / "root/etc/security/limits.d"
    shutil.rmtree(folder / "root", ignore_errors=True)
    place.mkdir(parents=True)
    (folder / "root/proc").mkdir()
    (place / name).write_text(f"{line}\n")
    (folder / "root/etc/group").write_text("tt-group:x:77:tt-user\nother:x:78:\n")
    (folder / "root/etc/passwd").write_text("second:x:9:78::/:/bin/sh\n")
    return PlanContext(limit_lines=limit_files.probe(below(str(folder / "root"))))


def test_members_of_a_group_by_both_files(tmp_path: Path) -> None:
    assert context(tmp_path, "a.conf", "@tt-group - nofile 7").limit_lines[0].members == ("tt-user",)
    assert context(tmp_path, "a.conf", "@other - nofile 7").limit_lines[0].members == ("second",)


APPLY = "ulimit -n 1024; tt apply --yes --select limits"


@pytest.mark.parametrize("name", ["zz-site.conf", "zz my site.conf"])
def test_a_limit_that_will_have_no_effect_is_said_to_have_none(name: str, tmp_path: Path) -> None:
    script = f"""
    printf '* soft core 0\n@staff - nofile 600\nroot - nofile 600\n' > "/etc/security/limits.d/{name}"
    {APPLY}; rm "/etc/security/limits.d/{name}"; tt undo --yes; {APPLY}
    """
    found = " ".join(staged(tmp_path, script).split())
    place = f"/etc/security/limits.d/{name}"
    quoted = f"'{place}'" if " " in place else place
    assert f"{place}:3 (- nofile 600) wins over it for root: sudo sed -i '3s/^/# /' {quoted}" in found
    assert f"{place}:2 (- nofile 600) wins over it for group staff" in found
    first, _, second = found.partition("everything is as it was")
    assert "lost-at-boot limit nofile" in first and first.count("rc 5") == 1
    assert "waits limit nofile: takes effect after: next login" in second and second.endswith("rc 0")
