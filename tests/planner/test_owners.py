"""Where somebody else owns a setting it is refused, the owner is named, and the way there can be gone."""

from __future__ import annotations

from typing import Any

import pytest
from simulate import Seen, recording

from torchtune_sys.host.queries import UNAME
from torchtune_sys.model.plan import CommandStep, MadeBefore, Plan
from torchtune_sys.remediation import plan as planner
from torchtune_sys.rules import by_id

OWNERS: dict[str, tuple[dict[str, Any], str, dict[str, str]]] = {
    "NixOS": ({"files": {"/etc/NIXOS": ""}}, "NixOS owns", {"": "nixos-rebuild switch"}),
    "Talos": ({"files": {"/etc/talos-release": "v1.9.1\n"}}, "Talos owns", {"": "talosctl"}),
    "Bottlerocket": ({"files": {"/usr/share/bottlerocket/release": ""}}, "Bottlerocket owns", {"": "apiclient set"}),
    "COS": (
        {"files": {"/etc/os-release": 'NAME="Container-Optimized OS"\nID=cos\nVERSION_ID=121\n'}},
        "Container-Optimized OS owns",
        {"": "user-data"},
    ),
    "NixOS by its name": ({"files": {"/etc/os-release": "ID=nixos\n"}}, "NixOS owns", {"": "nixos-rebuild switch"}),
    "Talos by its name": ({"files": {"/etc/os-release": "ID=talos\n"}}, "Talos owns", {"": "talosctl"}),
    "Bottlerocket by its name": ({"files": {"/etc/os-release": "ID=bottlerocket\n"}}, "Bottlerocket owns", {"": "apiclient set"}),
    "OpenShift": ({"files": {"/etc/os-release": "ID=rhcos\n"}}, "OpenShift owns", {"": "MachineConfig"}),
    "an image": (
        {"spaces": {"/etc": {"size": 1 << 30, "free": 0, "inodes": 9, "inodes_free": 0, "read_only": True}}},
        "the image (/etc is read-only) owns",
        {"": "change the image"},
    ),
    "a container": (
        {"files": {"/.dockerenv": ""}, "links": {"/proc/self/ns/pid": "pid:[4026532841]"}},
        "this is a container (docker)",
        {
            "net.core.somaxconn": "--sysctl net.core.somaxconn=",
            "limit nofile": "--ulimit nofile=",
            "": "run torchtune-sys on the container's host",
        },
    ),
    "a pod": (
        {"files": {"/.dockerenv": ""}, "env": {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}},
        "this is a container (kubernetes)",
        {"net.core.somaxconn": "securityContext.sysctls", "limit nofile": "the runtime's", "": "the container's host"},
    ),
    "LXC": (
        {"files": {"/run/systemd/container": "lxc\n"}},
        "this is a container (lxc)",
        {"net.core.somaxconn": "lxc.sysctl.net.core.somaxconn", "limit nofile": "lxc.prlimit.nofile", "": "the container's host"},
    ),
    "nspawn": (
        {"files": {"/run/systemd/container": "systemd-nspawn\n"}},
        "this is a container (nspawn)",
        {"limit nofile": "under [Exec] of its .nspawn file", "": "the container's host"},
    ),
    "WSL": (
        {"kernel": "5.15.153.1-microsoft-standard-WSL2"},
        "Windows starts this kernel",
        {"limit nofile": "system.conf of the guest", "": ".wslconfig"},
    ),
}
ASKING = {
    "max-map-count-low.fail": "vm.max_map_count",
    "thp-never.fail": "/sys/kernel/mm/transparent_hugepage/enabled",
    "nvme-scheduler-not-none.fail": "/sys/block/nvme1n1/queue/scheduler",
    "nofile-limit-too-low.fail": "limit nofile",
    "iommu-translates-gpu-traffic.fail": "kernel argument iommu",
    "somaxconn-low.fail": "net.core.somaxconn",
    "gpu-persistence-mode-off.fail": "service nvidia-persistenced",
}


def planned(host: str, overlay: dict[str, Any]) -> Plan:
    overlay = dict(overlay)
    kernel = overlay.pop("kernel", "")
    if kernel:
        answers = recording(host)["answers"]
        overlay["answers"] = {UNAME: {**answers[UNAME], "release": kernel}}
    return Seen(recording(host, **overlay), [by_id()[host.partition(".")[0]]]).plan


@pytest.mark.parametrize("host", ASKING)
def test_without_an_owner_it_is_changed(host: str) -> None:
    plan = planned(host, {"files": {"/usr/sbin/update-grub": ""}})
    assert ASKING[host] in {change.key for change in plan.changes}


@pytest.mark.parametrize("host", ASKING)
@pytest.mark.parametrize("owner", OWNERS)
def test_the_owner_of_the_whole_system(owner: str, host: str) -> None:
    overlay, reason, ways = OWNERS[owner]
    plan = planned(host, overlay)
    assert plan.changes == () and plan.files == ()
    refused = {refusal.key: refusal for refusal in plan.refused}
    if not refused:  # where a container or WSL is, some rules have nothing to say
        assert owner in ("a container", "a pod", "LXC", "nspawn", "WSL")
        return
    assert reason in refused[ASKING[host]].reason
    assert ways.get(ASKING[host], ways[""]) in refused[ASKING[host]].way


TUNED = {
    "swappiness-high.fail": ("[sysctl]\nvm.swappiness=60", "vm.swappiness=60"),
    "thp-never.fail": ("[vm]\ntransparent_hugepages=never", "vm.transparent_hugepages=never"),
    "nvme-scheduler-not-none.fail": ("[disk]\nelevator=bfq", "disk.elevator=bfq"),
    "read-ahead-small.fail": ("[disk]\nreadahead=>128", "disk.readahead=>128"),
    "cpu-governor-powersave.fail": ("[cpu]\ngovernor=powersave", "cpu.governor=powersave"),
    "iommu-translates-gpu-traffic.fail": ("[bootloader]\ncmdline_x=+iommu=strict", "bootloader.cmdline_x=+iommu=strict"),
}


@pytest.mark.parametrize("mine", [True, False], ids=["sets it", "sets something else"])
@pytest.mark.parametrize("host", TUNED)
def test_what_the_active_profile_of_tuned_sets(host: str, mine: bool) -> None:
    text, said = TUNED[host]
    profile = f"[main]\nsummary=x\n{text if mine else '[audio]'}\n"
    files = {"/etc/tuned/active_profile": "site\n", "/run/tuned/tuned.pid": "12\n", "/etc/tuned/site/tuned.conf": profile}
    plan = planned(host, {"files": {**files, "/usr/sbin/update-grub": ""}})
    refused = [refusal for refusal in plan.refused if "tuned is active (profile site)" in refusal.reason]
    assert [said in refusal.reason and "generate tuned" in refusal.way for refusal in refused] == [True] * mine
    assert mine or plan.changes


def test_what_a_later_file_may_do_is_told() -> None:
    """grub-mkconfig reads /etc/default/grub.d in the order of the names, and the last assignment holds."""
    plan = planned("iommu-translates-gpu-traffic.fail", {"files": {"/usr/sbin/update-grub": ""}})
    told = [words for change in plan.changes for words in change.later if "GRUB_CMDLINE_LINUX anew wins" in words]
    assert len(told) == 1


GRUB_D = "/etc/default/grub.d"


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("99-zz-site.cfg", 'GRUB_CMDLINE_LINUX="quiet"', True),
        ("99-zz-site.cfg", 'GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX quiet"', False),
        ("kdump-tools.cfg", 'GRUB_CMDLINE_LINUX_DEFAULT="$GRUB_CMDLINE_LINUX_DEFAULT crashkernel=512M"', False),
        ("10-site.cfg", 'GRUB_CMDLINE_LINUX="quiet"', False),
    ],
)
def test_the_file_of_grub_that_takes_the_argument_away_is_named(name: str, text: str, told: bool) -> None:
    plan = planned(
        "iommu-translates-gpu-traffic.fail", {"files": {"/usr/sbin/update-grub": "", f"{GRUB_D}/{name}": f"# x\n{text}\n"}}
    )
    (change,) = plan.changes
    assert any(words.startswith(f"{GRUB_D}/{name}:2 sets GRUB_CMDLINE_LINUX anew") for words in change.later) is told


@pytest.mark.parametrize(
    ("tools", "command"),
    [
        (("dracut",), "sudo dracut --force --regenerate-all"),
        (("mkinitcpio",), "sudo mkinitcpio -P"),
        (("update-initramfs", "dracut"), "sudo update-initramfs -u -k all"),
        ((), None),
    ],
)
def test_an_option_of_a_module_names_what_makes_this_host_s_initramfs(tools: tuple[str, ...], command: str | None) -> None:
    plan = planned("uvm-hmm-stops-cuda.fail", {"files": {f"/usr/bin/{tool}": "" for tool in tools}})
    (change,) = plan.changes
    assert [words.rpartition(": ")[2] for words in change.later if "initramfs" in words] == [command] * (command is not None)


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({"/etc/ssh/sshd_config": "Include x\nUsePAM no\n"}, "/etc/ssh/sshd_config:2 has UsePAM no"),
        ({"/etc/ssh/sshd_config": "UsePAM no\n", "/etc/ssh/sshd_config.d/50-x.conf": "UsePAM yes\n"}, ""),
        ({"/etc/pam.d/sshd": "@include common\n", "/etc/pam.d/common": "session required pam_unix.so\n"}, "names pam_limits.so"),
        ({"/etc/pam.d/sshd": "session include common\n", "/etc/pam.d/common": "session required pam_limits.so\n"}, ""),
        ({"/etc/pam.d/sshd": "session include elsewhere\n"}, ""),
        (
            {"/etc/pam.d/sshd": "session include sshd\nsession include other\n", "/etc/pam.d/other": "session include sshd\n"},
            "names pam_limits",
        ),
    ],
)
def test_where_no_login_reads_the_limits_it_is_told(files: dict[str, str], told: str) -> None:
    plan = planned("nofile-limit-too-low.fail", {"files": files})
    (change,) = plan.changes
    assert [told in words for words in change.later if "PAM" in words] == [True] * bool(told)


@pytest.mark.parametrize(
    ("made", "found"),
    [
        (MadeBefore(), "waiting"),
        (MadeBefore(earlier=frozenset({"kernel argument iommu"})), "refused"),
        (MadeBefore(earlier=frozenset({"kernel argument iommu"}), since_start=frozenset({"kernel argument iommu"})), "waiting"),
    ],
)
def test_what_a_start_did_not_bring_is_not_waited_for(made: MadeBefore, found: str) -> None:
    """Another file, or GRUB_CMDLINE_LINUX_DEFAULT, wins: "takes effect after: reboot" was said after every reboot."""
    host = "iommu-translates-gpu-traffic.fail"
    tool = {"/usr/sbin/update-grub": ""}
    seen = Seen(recording(host, files={**tool, **{file.path: file.content for file in planned(host, {"files": tool}).files}}))
    plan = planner.plan(seen.facts, seen.results, seen.ground, made)
    assert [one.key for one in getattr(plan, found)] == ["kernel argument iommu"]
    assert len(plan.waiting) + len(plan.refused) == 1 and not plan.changes
    assert all("/proc/cmdline" in one.way and "GRUB_CMDLINE_LINUX_DEFAULT" in one.way for one in plan.refused)


ENTRIES = "/boot/loader/entries"


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (("", ""), "changes"),
        (("iommu=pt", "iommu=pt"), "waiting"),
        (("iommu=pt", ""), "some boot entries have iommu=pt and some do not"),
        (("", "iommu=strict"), "the next boot has iommu=strict, which grubby would replace"),
    ],
)
def test_what_the_next_boot_has_already_is_not_taken_away_by_undo(arguments: tuple[str, str], found: str) -> None:
    """grubby replaces an argument of the same name, and its inverse would take what an administrator had set."""
    files = {f"{ENTRIES}/{n}.conf": f"title x\noptions root=/dev/sda1 {word}\n" for n, word in enumerate(arguments)}
    files |= {f"{ENTRIES}/0-rescue.conf": "options root=/dev/sda1 iommu=off\n", "/usr/sbin/grubby": ""}
    dirs = {ENTRIES: [name.rpartition("/")[2] for name in files if name.startswith(ENTRIES)]}
    plan = planned("iommu-translates-gpu-traffic.fail", {"files": files, "dirs": dirs})
    keys = [change.key for change in getattr(plan, found, ())]
    reasons = [refusal.reason for refusal in plan.refused if refusal.key == "kernel argument iommu"]
    assert keys == ["kernel argument iommu"] if found in ("changes", "waiting") else reasons[0].startswith(found)


def test_on_rpm_ostree_arguments_go_by_its_tool() -> None:
    """There /etc may be written; only the boot loader belongs to the image."""
    plan = planned("iommu-translates-gpu-traffic.fail", {"files": {"/run/ostree-booted": "", "/usr/bin/grubby": ""}})
    steps = [step for change in plan.changes for step in change.steps if isinstance(step, CommandStep)]
    assert [(step.argv[:2], step.undo[2].startswith("--delete-if-present=")) for step in steps] == [
        (("rpm-ostree", "kargs"), True)
    ]


@pytest.mark.parametrize(
    ("files", "says"),
    [
        (
            ("/usr/sbin/grub2-mkconfig",),
            "add iommu=pt to GRUB_CMDLINE_LINUX in /etc/default/grub, then: sudo grub2-mkconfig -o /boot/grub2/grub.cfg",
        ),
        (("/usr/bin/grub-mkconfig", "/usr/bin/bootctl"), "sudo grub-mkconfig -o /boot/grub/grub.cfg"),
        (("/usr/sbin/transactional-update", "/usr/sbin/grub2-mkconfig"), "sudo transactional-update grub.cfg, and reboot"),
        (
            ("/usr/bin/sdbootutil", "/usr/sbin/transactional-update"),
            "/etc/kernel/cmdline, then: sudo sdbootutil update-all-entries",
        ),
        (("/usr/bin/kernelstub", "/usr/bin/bootctl"), "sudo kernelstub --add-options iommu=pt"),
        (("/usr/bin/bootctl",), "/etc/kernel/cmdline and in the options of the files in /boot/loader/entries"),
        (("/etc/kernel/proxmox-boot-uuids", "/etc/kernel/cmdline", "/usr/sbin/update-grub"), "sudo proxmox-boot-tool refresh"),
        (("/boot/firmware/cmdline.txt",), "add iommu=pt to the one line of /boot/firmware/cmdline.txt, and reboot"),
        (("/etc/default/flash-kernel", "/boot/extlinux/extlinux.conf"), "LINUX_KERNEL_CMDLINE in /etc/default/flash-kernel"),
        (("/boot/extlinux/extlinux.conf", "/usr/bin/bootctl"), "the line APPEND of /boot/extlinux/extlinux.conf"),
        (("/etc/update-extlinux.conf", "/boot/extlinux/extlinux.conf"), "default_kernel_opts in /etc/update-extlinux.conf"),
        (("/efi/EFI/Linux/arch.efi", "/usr/bin/mkinitcpio", "/usr/bin/bootctl"), "sudo mkinitcpio -P"),
        (("/boot/efi/EFI/Linux/6.1.efi", "/usr/bin/dracut"), "in a file of /etc/dracut.conf.d"),
        (("/run/ostree-booted", "/usr/bin/bootc"), 'kargs = ["iommu=pt"] in a file of /usr/lib/bootc/kargs.d'),
        ((), "add iommu=pt to the kernel's arguments in the boot loader's own configuration"),
    ],
)
def test_where_no_tool_of_ours_is_the_refusal_says_what_to_add_and_how(files: tuple[str, ...], says: str) -> None:
    plan = planned("iommu-translates-gpu-traffic.fail", {"files": dict.fromkeys(files, "")})
    (refusal,) = [one for one in plan.refused if one.key == "kernel argument iommu"]
    assert refusal.reason.startswith("there is no tool here that can add and remove kernel arguments")
    assert says in refusal.way


@pytest.mark.parametrize("place", ["/usr/lib/sysctl.d", "/run/sysctl.d", "/etc/sysctl.d"])
@pytest.mark.parametrize("whole", [True, False])
def test_a_file_that_is_read_after_ours_is_told_with_the_way_around_it(place: str, whole: bool) -> None:
    """sysctl.d(5): a file of the same name in /etc counts in the place of a vendor's, which an upgrade would write anew."""
    files: dict[str, Any] = {f"{place}/99-zz-other.conf": "# x\nvm.swappiness = 60\n"}
    dirs: dict[str, Any] = {} if whole else {"/usr/local/lib/sysctl.d": {"error": "not-recorded"}}
    plan = planned("swappiness-high.fail", {"files": files, "dirs": dirs})
    (change,) = plan.changes
    told = next(note for note in change.later if f"{place}/99-zz-other.conf:2" in note)
    assert "wins at boot" in told
    assert ("a copy of it as /etc/sysctl.d/99-zz-other.conf counts in its place: take line 2 out there" in told) is (
        place[1:4] != "etc"
    )
    assert ("sudo sed -i" in told) is (place[1:4] == "etc")


def test_a_vendors_file_whose_place_another_takes_is_not_told() -> None:
    files = {"/usr/lib/sysctl.d/99-zz-other.conf": "vm.swappiness = 60\n", "/etc/sysctl.d/99-zz-other.conf": "# nothing\n"}
    (change,) = planned("swappiness-high.fail", {"files": files}).changes
    assert not any("99-zz-other" in note for note in change.later)
