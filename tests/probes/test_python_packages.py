"""Packages, torch and CUDA of an environment, from invented files."""

from __future__ import annotations

import pytest
from invented_environment import ANSWER, SITE, VENV, VERSION_PY, probe

from torchtune_sys.host.recorded import RecordedHost
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.values import Missing, Why, absent
from torchtune_sys.probes.python import probe as python


def test_torch_and_its_libraries_are_found() -> None:
    found = probe(
        {
            f"{SITE}/torch/version.py": VERSION_PY,
            f"{SITE}/torch-2.5.1.dist-info/METADATA": "Name: torch\nRequires-Dist: numpy\n",
            f"{SITE}/torch-2.5.1.dist-info/WHEEL": "Tag: cp312-cp312-manylinux1_x86_64\n",
            f"{SITE}/nvidia_nccl_cu12-2.21.5.dist-info/INSTALLER": "pip",
            f"{SITE}/nvidia_nccl_cu11-2.14.3.dist-info/INSTALLER": "pip",
            f"{SITE}/requests-2.0.dist-info/INSTALLER": "pip",
            f"{SITE}/~umpy-1.26.4.dist-info/INSTALLER": "pip",
        }
    )
    assert not isinstance(found.torch, Missing) and not isinstance(found.distributions, Missing)
    assert (found.torch.version, found.torch.cuda, found.torch.nccl) == ("2.5.1+cu124", "12.4", "2.21.5")
    assert [item.name for item in found.distributions] == ["nvidia-nccl-cu11", "nvidia-nccl-cu12", "torch"]
    assert found.distributions[-1].tags == ("cp312-cp312-manylinux1_x86_64",)
    assert found.leftovers == (f"{SITE}/~umpy-1.26.4.dist-info",)


def test_metadata_without_its_package_is_a_failure_not_an_absence() -> None:
    found = probe({f"{SITE}/torch-2.5.1.dist-info/METADATA": "Name: torch\n"})
    assert isinstance(found.torch, Missing) and found.torch.why is Why.FAILED


def test_a_directory_that_an_uninstall_left_is_no_torch() -> None:
    assert absent(probe({f"{SITE}/torch/lib/stray.so": ""}).torch)


def test_an_unlistable_site_directory_is_not_an_empty_one() -> None:
    recording = {"dirs": {SITE: {"error": "denied"}}, "files": {f"{VENV}/bin/python3": ""}, "env": {"PATH": f"{VENV}/bin"}}
    found = python.probe(RecordedHost({**recording, "answers": {f"interpreter:{VENV}/bin/python3": ANSWER}}, "r"), Workload())
    assert isinstance(found.torch, Missing) and found.torch.why is Why.DENIED
    assert isinstance(found.distributions, Missing)


@pytest.mark.parametrize(
    ("uid", "closed", "why"), [(1000, "/opt/other", Why.ABSENT), (0, "/opt/other", Why.DENIED), (1000, SITE, Why.DENIED)]
)
def test_what_python_itself_passes_over_hides_no_torch(uid: int, closed: str, why: Why) -> None:
    path = ["/opt/other", *ANSWER["path"]]
    recording = {
        "dirs": {SITE: [], closed: {"error": "denied"}},
        "files": {f"{VENV}/bin/python3": ""},
        "env": {"PATH": f"{VENV}/bin"},
    }
    answers = {f"interpreter:{VENV}/bin/python3": {**ANSWER, "path": path}, "uid": {"uid": uid}}
    found = python.probe(RecordedHost({**recording, "answers": answers}, "r"), Workload())
    assert isinstance(found.torch, Missing) and found.torch.why is why
    assert isinstance(found.distributions, Missing) is (why is Why.DENIED)


@pytest.mark.parametrize(
    ("files", "path", "hidden"),
    [
        (("random.py",), ("/w", "/usr/lib/python312.zip"), ("/w/random.py",)),
        (("random.py",), ("/w/", "/usr/lib/python3.12"), ("/w/random.py",)),
        (("random.py",), ("/usr/lib/python3.12", "/w"), ()),  # Python's own comes first
        (("random.py",), ("/w",), ()),  # a report that tells no order
        (("queue/__init__.py",), ("/w", "/usr/lib/python3.12"), ("/w/queue/__init__.py",)),
        (
            ("queue/notes.txt", "train.py", "test.py", "random.pyc"),
            ("/w", "/usr/lib/python3.12"),
            (),
        ),  # a folder alone hides nothing
        (("torch.py", "numpy/__init__.py"), ("/w", "/usr/lib/python3.12"), ("/w/numpy/__init__.py", "/w/torch.py")),
        (("torch/__init__.py", "torch/version.py", "numpy/__init__.py", "numpy/version.py"), ("/w", "/usr/lib/python3.12"), ()),
        (("torch/__init__.py", "numpy.py"), ("/usr/lib/python3.12", "/w"), ()),
    ],
)
def test_files_that_hide_a_module_which_torch_needs(
    files: tuple[str, ...], path: tuple[str, ...], hidden: tuple[str, ...]
) -> None:
    found = probe({f"/w/{name}": "" for name in files}, path=[*path, SITE])
    assert tuple(sorted(found.hiding)) == hidden


@pytest.mark.parametrize(
    ("files", "lost"),
    [
        ((), ["accel of torch_accel-1.0, module torch_accel.init"]),
        (("torch_accel/__init__.py",), []),
        (("torch_accel.cpython-312-x86_64-linux-gnu.so",), []),
        (("__editable___torch_accel_1_0_finder.py",), []),  # its files are anywhere
    ],
)
def test_backend_extensions_whose_module_is_gone(files: tuple[str, ...], lost: list[str]) -> None:
    points = "[console_scripts]\nx = gone:main\n[torch.backends]\naccel = torch_accel.init:_autoload\n"
    found = probe({f"{SITE}/torch_accel-1.0.dist-info/entry_points.txt": points, **{f"{SITE}/{name}": "" for name in files}})
    assert list(found.lost_backends) == lost


@pytest.mark.parametrize(
    ("files", "hidden"),
    [
        (("sympy.py", "typing_extensions.py", "optree.py"), ("/w/sympy.py", "/w/typing_extensions.py")),  # optree is an extra
        (("typing_extensions.py", "typing_extensions-4.12.dist-info/METADATA", "sympy/__init__.py"), ()),
    ],
)
def test_files_that_hide_a_package_which_torch_requires(files: tuple[str, ...], hidden: tuple[str, ...]) -> None:
    metadata = (
        'Name: torch\nRequires-Dist: typing-extensions>=4.10.0\nRequires-Dist: sympy\nRequires-Dist: optree; extra == "optree"\n'
    )
    there = {f"{SITE}/torch-2.13.0.dist-info/METADATA": metadata, **{f"/w/{name}": "" for name in files}}
    found = probe(there, path=["/w", "/usr/lib/python3.12", SITE])
    assert tuple(sorted(found.hiding)) == hidden


def test_an_environment_without_its_pyvenv_cfg_is_told_from_one_without_torch() -> None:
    """Its python then is the base Python, whose packages are others."""
    torch = {f"{SITE}/torch/version.py": VERSION_PY}
    lost = {"prefix": "/usr", "path": ["/usr/lib/python3.12", "/usr/lib/python3/dist-packages"]}
    found = probe(torch, **lost).torch
    assert isinstance(found, Missing) and found.why is Why.FAILED and "it has no pyvenv.cfg" in found.detail
    found = probe({**torch, f"{VENV}/pyvenv.cfg": "home = /usr/bin"}, **lost).torch
    assert isinstance(found, Missing) and found.why is Why.FAILED and "PYTHONHOME" in found.detail
    assert absent(probe({}, **lost).torch), "there is no torch in the environment"
    free = {f"{VENV}/lib/python3.13t/site-packages/torch/version.py": VERSION_PY}
    found = probe(free, version="3.13.1", free_threaded=True, **lost).torch
    assert isinstance(found, Missing) and found.why is Why.FAILED, "a free-threaded Python has a directory of its own"
    assert absent(probe({}, prefix=VENV).torch), "nor here"


def test_conda_packages() -> None:
    found = probe({f"{VENV}/conda-meta/pytorch-2.1.0-py3.11_cuda12.1_cudnn8.9.2_0.json": "{}"})
    assert found.conda is True and not isinstance(found.distributions, Missing)
    assert [(item.name, item.version, item.build) for item in found.distributions] == [
        ("pytorch", "2.1.0", "py3.11_cuda12.1_cudnn8.9.2_0")
    ]


def test_the_library_path_and_the_toolkits() -> None:
    found = probe(
        {
            "/opt/cuda/lib64/libcudnn.so.9": "",
            "/opt/cuda/lib64/libcudnn.so.9.1.0": "",
            "/opt/cuda/lib64/libcudnn_graph.so.9": "",
            "/other/libcudnn.so.9.5.1": "",
            "/usr/local/cuda-12.4/version.json": '{"cuda": {"version": "12.4.1"}}',
            "/usr/local/cuda-12.4/bin/nvcc": "",
            "/usr/local/cuda-12.4/bin/ptxas": "",
            "/usr/local/cuda-12.6/version.json": '{"cuda": {"version": "12.6.0"}}',
        },
        {"LD_LIBRARY_PATH": "/opt/cuda/lib64:/other:relative", "CUDA_HOME": "/usr/local/cuda-12.4"},
    )
    assert found.ptxas == ("/usr/local/cuda-12.4",)
    assert not isinstance(found.shadowing, Missing)
    assert [(item.path, item.version) for item in found.shadowing] == [("/opt/cuda/lib64/libcudnn.so.9", "9.1.0")]
    assert found.toolkits == ("/usr/local/cuda-12.4 (12.4.1)", "/usr/local/cuda-12.6 (12.6.0)")
    assert (found.nvcc, found.nvcc_path) == ("12.4.1", "/usr/local/cuda-12.4/bin/nvcc")
