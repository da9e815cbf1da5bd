"""Healthy neighbours of the ninth list's faults: the same evidence, and nothing is wrong; beside each class one that is wrong."""

from __future__ import annotations

import pytest
from hosts_082 import wsl2
from hosts_306 import _ptxas
from hosts_336 import _added
from hosts_384 import radeon
from hosts_424 import rhel_login
from hosts_478 import _reached, _torch_2_3
from hosts_table import HOSTS, desktop, mi300x, two_dgx
from test_listed_hosts import _seen

from conftest import judge_one
from machines import Recording, environment, interpreter, over, torch
from platforms import intel_xpu
from platforms_owners import gaming_laptop
from platforms_troubled import logged
from torchtune_sys.model.rule import Verdict

_FAULT = "amdgpu 0000:03:00.0: amdgpu: [gfxhub] page fault (src_id:0 ring:{} vmid:{} pasid:32778{})"
_JOB = "xe 0000:03:00.0: [drm] Tile0: GT0: Timedout job: seqno=7, lrc_seqno=7, guc_id=2, flags=0x0 in {} [4711]"
_REFUSED = "amdgpu: SVM mapping failed, exceeds resident system memory limit"
_STOPPED, _SLEPT, _COMPILES = "gpu-program-stopped-logged", "host-suspended-logged", "compile-python-too-new"
_HIDDEN, _OF_TORCH, _OF_CUDA, _REACHED = (
    "cuda-visible-devices-wrong",
    "extension-torch-abi-mismatch",
    "extension-cuda-mismatch",
    "nccl-wrong-interface",
)


def _mirrored() -> Recording:
    host = _reached("172.24.93.7", 20)
    more = {"name": "loopback0", "addresses": [], "index": 90}
    first = host["answers"]["interfaces"][0]
    return over(host, answers={"interfaces": [*host["answers"]["interfaces"], {**first, **more}]})


def _on_python(version: str, build: str) -> Recording:
    return interpreter(torch(desktop(), build, cuda="12.6"), version=version)


VARIANTS = {
    "a desktop program's page fault": (
        _STOPPED,
        lambda: logged(radeon(), _FAULT.format(24, 3, ", for process Xorg pid 9")),
        Verdict.PASS,
    ),
    "a page fault of a game": (_STOPPED, lambda: logged(radeon(), _FAULT.format(24, 5, "")), Verdict.PASS),
    "a page fault on a GPU that shows nothing": (_STOPPED, lambda: _instinct(3), Verdict.FAIL),
    "its video decoder's page fault": (_STOPPED, lambda: _instinct(2), Verdict.PASS),
    "a page fault that the GPU tries again": (
        _STOPPED,
        lambda: logged(radeon(), _FAULT.format(24, 8, "").replace("] page fault", "] retry page fault")),
        Verdict.PASS,
    ),
    "memory that was refused twice": (_STOPPED, lambda: logged(radeon(), _REFUSED, _REFUSED), Verdict.PASS),
    "a browser's job on an Intel GPU": (_STOPPED, lambda: logged(intel_xpu(), _JOB.format("firefox")), Verdict.PASS),
    "a page fault of Python's": (
        _STOPPED,
        lambda: logged(radeon(), _FAULT.format(24, 3, ", for process python3 pid 9")),
        Verdict.FAIL,
    ),
    "a laptop that sleeps": (_SLEPT, lambda: logged(_portable(), "PM: suspend entry (s2idle)"), Verdict.NA),
    "a desktop that was hibernated by nobody": (
        _SLEPT,
        lambda: logged(desktop(), "PM: hibernation: Registered nosave memory"),
        Verdict.PASS,
    ),
    "a device that sleeps": (_SLEPT, lambda: logged(desktop(), "usb 1-4: reset full-speed USB device"), Verdict.PASS),
    "a machine that was asked to stay awake": (_SLEPT, desktop, Verdict.PASS),
    "Python 3.12 and torch 2.4": (_COMPILES, lambda: _on_python("3.12.3", "2.4.0+cu124"), Verdict.PASS),
    "Python 3.13 and torch 2.6": (_COMPILES, lambda: _on_python("3.13.1", "2.6.0+cu126"), Verdict.PASS),
    "Python 3.10 and torch 2.1": (_COMPILES, lambda: _on_python("3.10.12", "2.1.2+cu121"), Verdict.NA),
    "Python 3.12 and torch 1.13": (_COMPILES, lambda: _on_python("3.12.3", "1.13.1+cu117"), Verdict.NA),
    "Python 3.13 and torch 2.5": (_COMPILES, lambda: _on_python("3.13.1", "2.5.1+cu124"), Verdict.FAIL),
    "WSL with mirrored networking in such a network": (_REACHED, _mirrored, Verdict.PASS),
    "a LAN of 172.24.0.0 with 24 bits": (_REACHED, lambda: _reached("172.24.93.7", 24), Verdict.PASS),
    "WSL alone": (_REACHED, wsl2, Verdict.PASS),
    "a cluster of 172.24.80.0 with 20 bits": (_REACHED, lambda: _in_172(), Verdict.PASS),
    "an Intel card by its number": (_HIDDEN, lambda: environment(intel_xpu(), ZE_AFFINITY_MASK="0"), Verdict.PASS),
    "one of a list that is here": (_HIDDEN, lambda: environment(intel_xpu(), ZE_AFFINITY_MASK="0,7"), Verdict.PASS),
    "a selector with two back ends": (
        _HIDDEN,
        lambda: environment(intel_xpu(), ONEAPI_DEVICE_SELECTOR="opencl:cpu;level_zero:0"),
        Verdict.PASS,
    ),
    "a selector that leaves OpenCL out": (
        _HIDDEN,
        lambda: environment(intel_xpu(), ONEAPI_DEVICE_SELECTOR="!opencl:*"),
        Verdict.PASS,
    ),
    "torchcodec that no table has": (_OF_TORCH, lambda: _added(desktop(), "torchcodec-0.11.0"), Verdict.PASS),
    "a nightly torchcodec": (_OF_TORCH, lambda: _added(desktop(), "torchcodec-0.9.0.dev20250901"), Verdict.PASS),
    "torchtext of this torch": (_OF_TORCH, lambda: _added(_torch_2_3(), "torchtext-0.18.0"), Verdict.PASS),
    "Transformer Engine for this CUDA": (_OF_CUDA, lambda: _added(desktop(), "transformer_engine_cu13-2.9.0"), Verdict.PASS),
    "cupy for another CUDA, which brings its own": (_OF_CUDA, lambda: _added(desktop(), "cupy_cuda12x-13.4.0"), Verdict.PASS),
    "a ptxas that is named and fits": ("triton-ptxas-older-than-gpu", lambda: _ptxas("13.0"), Verdict.PASS),
    "a logout that leaves this user": ("logind-kills-processes", lambda: _at_logout("KillExcludeUsers=root mia"), Verdict.PASS),
    "a logout that ends a guest's alone": ("logind-kills-processes", lambda: _at_logout("KillOnlyUsers=guest"), Verdict.PASS),
    "a logout that leaves root": ("logind-kills-processes", lambda: _at_logout(""), Verdict.FAIL),
    "a directory of another Python that is gone": ("packages-of-another-python", lambda: _searching(None), Verdict.PASS),
    "an egg of another Python": ("packages-of-another-python", lambda: _with_egg(), Verdict.FAIL),
    "a directory of another Python": ("packages-of-another-python", lambda: _searching([]), Verdict.FAIL),
    "Accelerate on the GPU": ("fast-path-switched-off", lambda: environment(desktop(), ACCELERATE_USE_CPU="false"), Verdict.PASS),
}


def _at_logout(*more: str) -> Recording:
    return over(
        rhel_login(), files={"/etc/systemd/logind.conf": ["[Login]", "KillUserProcesses=yes", *more]}, answers={"uid": _MIA}
    )


_MIA = {"uid": 1000, "gid": 1000, "groups": [1000], "user": "mia"}
_OLD = "/opt/old/lib/python3.6/site-packages"


def _searching(names: list[str] | None) -> Recording:
    own = next(answer["path"] for name, answer in desktop()["answers"].items() if name.startswith("interpreter:"))
    host = interpreter(desktop(), path=[_OLD, *own])
    return host if names is None else over(host, dirs={_OLD: names})


def _with_egg() -> Recording:
    own = next(answer["path"] for name, answer in desktop()["answers"].items() if name.startswith("interpreter:"))
    egg = f"{_OLD}/lightning-1.0-py3.6.egg"
    return over(interpreter(desktop(), path=[egg, *own]), files={egg: "PK"})


def _instinct(context: int) -> Recording:
    return logged(mi300x(), _FAULT.replace("03:", "1b:").format(24, context, ""))


def _portable() -> Recording:
    return over(gaming_laptop(), files={"/sys/class/dmi/id/chassis_type": "10\n"})


def _in_172() -> Recording:
    host = two_dgx()
    own = [{"family": "inet", "address": "172.24.93.7", "prefix_length": 20}]
    listed = [{**one, "addresses": own} if one["name"] == "eno3" else one for one in host["answers"]["interfaces"]]
    return over(host, answers={"interfaces": listed, "hostname-addresses": ["172.24.93.7"]})


@pytest.mark.parametrize("name", VARIANTS)
def test_a_healthy_neighbour_is_not_accused(name: str) -> None:
    rule_id, build, verdict = VARIANTS[name]
    found = judge_one(_seen(build), rule_id)
    assert found.verdict is verdict, found


def test_each_class_has_a_host_that_is_accused() -> None:
    for number, rule_id in (
        (521, _STOPPED),
        (507, _SLEPT),
        (486, _COMPILES),
        (503, _REACHED),
        (525, _HIDDEN),
        (484, _OF_TORCH),
        (482, _OF_CUDA),
    ):
        assert judge_one(_seen(HOSTS[number][0]), rule_id).verdict is Verdict.FAIL, number
