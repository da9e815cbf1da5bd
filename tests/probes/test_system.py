"""Systems, containers and hypervisors told from files, hostile ones included."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchtune_sys.formats.architecture import architecture_of
from torchtune_sys.host.live_queries import distribution
from torchtune_sys.host.recorded import RecordedHost
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.facts.system import Os, SystemFacts
from torchtune_sys.model.values import Missing, Why, known
from torchtune_sys.probes.system import machine, os_release
from torchtune_sys.probes.system import probe as system

DMI = "/sys/class/dmi/id"
VM = "flags\t\t: fpu sse hypervisor\n"
METAL = "flags\t\t: fpu sse vmx\n"
OVERLAY = "1 0 0:9 / / rw - overlay overlay rw,lowerdir=/var/lib/{}/overlay2/l/A,upperdir=/u,workdir=/w\n"
DISK = "27 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n"


def host(**sections: Any) -> RecordedHost:
    return RecordedHost(sections, "test")


def probe(**sections: Any) -> SystemFacts:
    return system.probe(host(**sections), Workload())


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        ({}, ""),
        ({"files": {"/.dockerenv": ""}}, "docker"),
        (
            {"files": {"/.dockerenv": "", "/proc/self/mountinfo": DISK}, "links": {"/proc/self/ns/pid": "pid:[4026532201]"}},
            "docker",
        ),
        ({"files": {"/.dockerenv": "", "/proc/self/mountinfo": DISK}, "links": {"/proc/self/ns/pid": "pid:[4026531836]"}}, ""),
        (
            {"files": {"/.dockerenv": "", "/proc/self/mountinfo": OVERLAY}, "links": {"/proc/self/ns/pid": "pid:[4026531836]"}},
            "docker",  # docker run --pid=host
        ),
        ({"files": {"/.dockerenv": ""}, "env": {"KUBERNETES_SERVICE_HOST": "10.96.0.1"}}, "kubernetes"),
        ({"files": {"/run/.containerenv": 'engine="podman-4.9"\n'}}, "podman"),
        ({"env": {"container": "podman"}}, "podman"),
        ({"env": {"APPTAINER_CONTAINER": "/images/torch.sif"}}, "apptainer"),
        ({"env": {"SINGULARITY_NAME": "torch.sif"}}, "apptainer"),
        ({"files": {"/run/systemd/container": "systemd-nspawn\n"}}, "nspawn"),
        ({"files": {"/run/systemd/container": "lxc\n"}}, "lxc"),
        ({"files": {"/run/systemd/container": "something-new\n"}}, "other"),
        ({"files": {"/proc/self/cgroup": "12:cpu:/kubepods/burstable/pod1/2\n"}}, "kubernetes"),
        ({"files": {"/proc/self/cgroup": "0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0\n"}}, ""),
        ({"files": {"/proc/self/cgroup": "9:memory:/slurm/uid_1000/job_7/step_0\n"}}, ""),
        ({"files": {"/proc/self/cgroup": "0::/system.slice/docker.service\n"}}, ""),
        ({"files": {"/proc/self/mountinfo": OVERLAY.format("docker")}}, "other"),
        ({"files": {"/proc/self/mountinfo": "1 0 0:9 / / rw - overlay overlay rw,lowerdir=/run/rootfs,upperdir=/run/rw\n"}}, ""),
    ],
)
def test_containers(sections: dict[str, Any], expected: str) -> None:
    assert machine.container(host(**sections)) == expected


def test_a_container_is_not_denied_where_nobody_could_look() -> None:
    found = machine.container(host(complete=False, files={"/proc/self/cgroup": "0::/\n"}))
    assert isinstance(found, Missing) and found.why is Why.NOT_RECORDED


@pytest.mark.parametrize(
    ("vendor", "product", "bios", "cpuinfo", "expected"),
    [
        ("Supermicro", "SYS-821GE-TNHR", "American Megatrends", METAL, ""),
        ("Amazon EC2", "p5.48xlarge", "Amazon EC2", VM, "amazon"),
        ("Amazon EC2", "p4d.24xlarge", "Amazon EC2", "Features\t: fp asimd\n", "amazon"),
        ("Amazon EC2", "c7g.metal", "Amazon EC2", "Features\t: fp asimd\n", ""),
        ("Amazon EC2", "g4dn.metal", "Amazon EC2", METAL, ""),
        ("Xen", "HVM domU", "Xen", VM, "xen"),
        ("Microsoft Corporation", "Virtual Machine", "Microsoft Corporation", VM, "microsoft"),
        ("Microsoft Corporation", "Surface Book 3", "Microsoft Corporation", METAL, ""),
        ("Google", "Google Compute Engine", "Google", VM, "google"),
        ("VMware, Inc.", "VMware7,1", "VMware, Inc.", VM, "vmware"),
        ("innotek GmbH", "VirtualBox", "innotek GmbH", VM, "virtualbox"),
        ("QEMU", "Standard PC (Q35 + ICH9, 2009)", "SeaBIOS", VM, "kvm"),
        ("OpenStack Foundation", "OpenStack Nova", "SeaBIOS", VM, "kvm"),
        ("Nobody", "Nothing", "Never", VM, "other"),
        ("NVIDIA", "GH200", "NVIDIA", "Features\t: fp asimd\n", ""),
    ],
)
def test_hypervisors_by_what_firmware_says(vendor: str, product: str, bios: str, cpuinfo: str, expected: str) -> None:
    files = {f"{DMI}/sys_vendor": vendor + "\n", f"{DMI}/product_name": product + "\n", f"{DMI}/bios_vendor": bios + "\n"}
    assert machine.hypervisor(host(files=files), "6.8.0", cpuinfo) == expected


@pytest.mark.parametrize(
    ("clock", "expected"), [("kvm-clock tsc acpi_pm", "kvm"), ("tsc hyperv_clocksource_tsc_page", "microsoft"), ("tsc", "other")]
)
def test_virtual_machines_without_firmware_tables(clock: str, expected: str) -> None:
    files = {"/sys/devices/system/clocksource/clocksource0/available_clocksource": clock}
    assert machine.hypervisor(host(files=files), "6.1.0", VM) == expected


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        ("5.15.153.1-microsoft-standard-WSL2", "wsl2"),
        ("5.10.16.3-microsoft-standard", "wsl2"),
        ("4.4.0-19041-Microsoft", "wsl1"),
        ("6.8.0-1014-azure", "microsoft"),
    ],
)
def test_wsl(kernel: str, expected: str) -> None:
    files = {f"{DMI}/sys_vendor": "Microsoft Corporation", f"{DMI}/product_name": "Virtual Machine"}
    assert machine.hypervisor(host(files=files), kernel, VM) == expected


@pytest.mark.parametrize(("platform", "expected"), [("PowerNV", ""), ("pSeries", "other")])
def test_power(platform: str, expected: str) -> None:
    assert machine.hypervisor(host(), "5.14.0", f"cpu\t: POWER9\n\nplatform\t: {platform}\n") == expected


def test_an_arm_board_with_a_device_tree_is_bare_metal() -> None:
    found = machine.hypervisor(
        host(files={"/proc/device-tree/model": "NVIDIA Jetson AGX Orin"}), "5.15.0-tegra", "Features\t: fp\n"
    )
    assert found == ""
    tree = {"/proc/device-tree/hypervisor/compatible": "linux,kvm\0"}
    assert machine.hypervisor(host(files=tree), "5.15.0", "Features\t: fp\n") == "kvm"


def test_no_cpuinfo_and_no_firmware_leave_it_unknown() -> None:
    assert isinstance(machine.hypervisor(host(), "6.8.0", Missing(Why.DENIED, "/proc/cpuinfo")), Missing)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"/usr/lib/os-release": "ID=fedora\nVERSION_ID=42\n"}, ("fedora", "42")),
        ({"/etc/os-release": "# comment\nNAME='A B'\n"}, ("linux", "")),
        ({"/etc/centos-release": "CentOS release 6.10 (Final)\n"}, ("centos", "6.10")),
        ({"/etc/redhat-release": "Red Hat Enterprise Linux Server release 6.9 (Santiago)\n"}, ("rhel", "6.9")),
        ({"/etc/debian_version": "7.11\n"}, ("debian", "7")),
    ],
)
def test_distributions(files: dict[str, str], expected: tuple[str, str]) -> None:
    found = os_release.read_os(host(files=files))
    assert isinstance(found, Os) and (found.id, found.version) == expected


def test_no_distribution_is_named_by_where_it_was_looked_for() -> None:
    found = os_release.read_os(host())
    assert isinstance(found, Missing) and found.source == "/etc/os-release"


def test_glibc_of_a_mounted_root() -> None:
    links = {"/lib64": "usr/lib64", "/usr/lib64/libc.so.6": "libc-2.17.so"}
    assert os_release.glibc_of_files(host(links=links, files={"/usr/lib64/libc-2.17.so": ""}), "x86_64") == "2.17"
    musl = os_release.glibc_of_files(host(files={"/lib/ld-musl-x86_64.so.1": ""}), "x86_64")
    assert isinstance(musl, Missing) and musl.why is Why.ABSENT
    newer = os_release.glibc_of_files(host(files={"/usr/lib/x86_64-linux-gnu/libc.so.6": ""}), "x86_64")
    assert isinstance(newer, Missing) and newer.why is Why.UNPARSED


def test_uname_goes_before_files() -> None:
    facts = probe(
        answers={"uname": {"release": "6.1", "machine": "aarch64", "nodename": "a"}},
        files={"/proc/sys/kernel/osrelease": "5.4\n"},
    )
    assert (facts.kernel, facts.machine, facts.hostname) == ("6.1", "aarch64", "a")
    facts = probe(files={"/proc/version": "Linux version 4.14.0-49.el7a.ppc64le (x@y)\n", "/etc/hostname": "b\n"})
    assert (facts.kernel, facts.machine, facts.hostname) == ("4.14.0-49.el7a.ppc64le", "ppc64le", "b")


@pytest.mark.parametrize("answer", ["today", "2026-1-1", 7, "", "2026/10/05"])
def test_a_date_is_a_date(answer: object) -> None:
    assert isinstance(probe(answers={"today": answer}).today, Missing)


TEXTS = st.one_of(st.text(), st.text(alphabet='ID=ubn"\\ \n0.:', max_size=60), st.just("\0" * 4096), st.just("9" * 5000))


@given(TEXTS)
def test_parsers_survive_any_text(text: str) -> None:
    assert isinstance(os_release.parse_os_release(text), (Os, Missing))
    assert isinstance(system.parse_uptime(text), (float, Missing))
    assert isinstance(system.parse_version_line(text), (str, Missing))
    assert '"' not in "".join(system.parse_cmdline(text))
    os_release.parse_redhat_release(text)
    machine.parse_cgroup_hint(text)
    machine.is_container_root(text)
    machine.parse_hypervisor_flag(text)
    architecture_of(text, text)


FILES = [
    "/etc/os-release",
    "/etc/redhat-release",
    "/etc/debian_version",
    "/proc/version",
    "/proc/cpuinfo",
    "/proc/cmdline",
    "/proc/uptime",
    "/proc/1/comm",
    "/proc/self/cgroup",
    "/proc/self/mountinfo",
    "/run/systemd/container",
    f"{DMI}/sys_vendor",
    "/sys/hypervisor/type",
]


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.sampled_from(FILES), TEXTS))
def test_any_contents_give_facts(files: dict[str, str]) -> None:
    assert isinstance(probe(files=files), SystemFacts)


@pytest.mark.parametrize("path", FILES)
@pytest.mark.parametrize("content", [{"error": "denied"}, {"error": "failed"}, "", "\ufffd\0", "-1", "1" * 3000])
def test_each_file_may_refuse_or_lie(path: str, content: Any) -> None:
    assert isinstance(probe(files={path: content}), SystemFacts)


@pytest.mark.parametrize("path", FILES)
def test_a_directory_in_place_of_a_file(path: str) -> None:
    assert isinstance(probe(files={f"{path}/inner": "0"}), SystemFacts)


@pytest.mark.parametrize("answer", [None, [], {}, {"release": 7}, "x", {"error": "failed"}])
def test_strange_answers(answer: Any) -> None:
    assert isinstance(probe(answers={"uname": answer, "glibc": "2.39"}), SystemFacts)


def test_a_live_host_without_os_release_is_named_by_the_distro_library() -> None:
    answer = {"id": "slackware", "like": "", "version": "14.2", "name": "Slackware 14.2", "codename": ""}
    found = os_release.read_os(host(answers={"distribution": answer}))
    assert isinstance(found, Os) and (found.id, found.version, found.pretty_name) == ("slackware", "14.2", "Slackware 14.2")


def test_the_distro_library_answers_here_or_says_that_nothing_is_named() -> None:
    found = distribution.distribution("", 1.0)
    assert isinstance(found, Missing) or (found["id"] and set(found) == {"id", "like", "version", "name", "codename"})


def test_denied_is_not_another_distribution() -> None:
    found = os_release.read_os(host(files={"/etc/os-release": {"error": "denied"}, "/etc/debian_version": "12.1"}))
    assert isinstance(found, Missing) and found.why is Why.DENIED


@pytest.mark.parametrize(
    ("files", "read_only", "expected"),
    [
        (("/run/ostree-booted", "/usr/bin/bootc"), True, "rpm-ostree"),
        (("/usr/sbin/transactional-update",), True, "transactional-update"),
        (("/usr/sbin/transactional-update",), False, ""),  # installed, and not used: the root is written to
        ((), True, ""),  # another read-only root
    ],
)
def test_what_makes_the_next_image(files: tuple[str, ...], read_only: bool, expected: str) -> None:
    space = {"size": 1 << 30, "free": 1 << 29, "inodes": 100, "inodes_free": 50, "read_only": read_only}
    found = probe(files=dict.fromkeys(files, ""), spaces={"/usr": space}).image_tool
    assert known(found, "") == expected
    assert expected or (isinstance(found, Missing) and found.why is Why.ABSENT), found


def test_where_it_cannot_be_seen_no_image_is_assumed() -> None:
    class Unseen(RecordedHost):
        def exists(self, path: str) -> Fact[bool]:
            return Missing(Why.TIMEOUT, path, "no answer")

    found = machine.image_tool(Unseen({}, "test"))
    assert isinstance(found, Missing) and found.why is Why.TIMEOUT
