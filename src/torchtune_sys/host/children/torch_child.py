"""Import torch and print what it sees. Runs in the examined interpreter, with the standard library and torch only.

Prints one JSON object on the last line of standard output, the shape of ``model.facts.python.LiveTorch``. Each look is
guarded by itself: what one of them raises becomes ``{"$missing": …}`` in the place of that one fact.
"""

# mypy: ignore-errors
# ruff: noqa: UP031
# It must run on every Python that torch ever had, so it has no annotations that the checker could use.

import importlib
import json
import os
import sys
import warnings


def brief(words):
    """Return an error in few words, cut at a blank: who reads it takes secrets out, and would not know the half of one."""
    return words if len(words) <= 400 else words[:400].rpartition(" ")[0]


def missing(error):
    return {"$missing": "failed", "source": "torch", "detail": "%s: %s" % (type(error).__name__, brief(str(error)))}


def guarded(look):
    try:
        return look()
    except Exception as error:
        return missing(error)


def nothing(words):
    return {"$missing": "absent", "source": "torch", "detail": words}


def cuda_error(torch):
    """Return what hinders CUDA, in CUDA's own words; is_available swallows it (or warns)."""
    if torch.version.cuda is None:
        return ""
    try:
        torch.cuda.init()
        torch.ones(1, device="cuda").add_(1).item()  # one kernel: a wheel without code for this GPU fails only here
    except Exception as error:
        return brief(str(error).strip().splitlines()[0])
    return ""


def tf32_matmul(torch):
    try:
        return torch.backends.cuda.matmul.fp32_precision == "tf32"
    except Exception:  # before 2.9, or both interfaces in use
        return bool(torch.backends.cuda.matmul.allow_tf32)


def dotted(number):
    """Return the version of cuDNN with dots: cuDNN 8 counts 1000s and 100s, cuDNN 9 counts 10000s and 100s."""
    if number >= 90000:
        return "%d.%d.%d" % (number // 10000, number // 100 % 100, number % 100)
    return "%d.%d.%d" % (number // 1000, number // 100 % 10, number % 100)


def gpu_facts(torch):
    cuda = torch.cuda
    count = cuda.device_count()
    return {
        "device_count": count,
        "arch_list": guarded(cuda.get_arch_list),
        "cudnn": guarded(lambda: dotted(torch.backends.cudnn.version())),
        "nccl": guarded(lambda: ".".join(str(part) for part in cuda.nccl.version())),
        "tf32_matmul": guarded(lambda: tf32_matmul(torch)),
        "tf32_cudnn": guarded(lambda: bool(torch.backends.cudnn.allow_tf32)),
        "bf16_native": guarded(lambda: bf16(cuda)),
        "capabilities": guarded(lambda: [list(cuda.get_device_capability(index)) for index in range(count)]),
        "links": guarded(lambda: [loaded_link(torch, index) for index in range(min(count, 16))]),
    }


COPY_BYTES = 64 << 20
"""Page-locked here and allocated on each GPU, one GPU after the other; freed at once."""
COPIES = 8


def loaded_link(torch, index):
    """Return a GPU's PCIe link while it copies: an idle one is slow on purpose. About 20 ms for each GPU."""
    address = pci_address(torch, index)
    place = "/sys/bus/pci/devices/%s/" % address
    with torch.cuda.device(index):
        source = torch.empty(COPY_BYTES, dtype=torch.uint8, pin_memory=True)
        target = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda")
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        target.copy_(source, non_blocking=True)  # lets the link train up
        torch.cuda.synchronize()
        start.record()
        for _ in range(COPIES):
            target.copy_(source, non_blocking=True)
        end.record()
        speed, width = number(place + "current_link_speed", float), number(place + "current_link_width", int)
        torch.cuda.synchronize()
        milliseconds = start.elapsed_time(end)
        del source, target
        torch.cuda.empty_cache()
    rate = COPIES * COPY_BYTES / 1e6 / milliseconds if milliseconds > 0 else nothing("no time passed")
    return {"address": address, "current_gts": speed, "current_width": width, "copy_gbytes_per_s": rate}


def pci_address(torch, index):
    """Lower case with a domain of four digits, as in sysfs."""
    found = torch.cuda.get_device_properties(index)
    if hasattr(found, "pci_bus_id"):  # since 2.8
        return "%04x:%02x:%02x.0" % (found.pci_domain_id, found.pci_bus_id, found.pci_device_id)
    import glob

    for path in glob.glob("/proc/driver/nvidia/gpus/*/information"):
        with open(path) as file:
            if str(found.uuid) in file.read():  # since 2.5
                return path.split("/")[-2].lower()
    raise LookupError("no PCI address for GPU %d" % index)


def number(path, kind):
    try:
        with open(path) as file:
            return kind(file.read().split()[0])
    except (OSError, ValueError, IndexError) as error:
        return {"$missing": "failed", "source": path, "detail": str(error)[:200]}


def bf16(cuda):
    try:
        return bool(cuda.is_bf16_supported(including_emulation=False))
    except TypeError:  # before 2.2 there was no emulation to include
        return bool(cuda.is_bf16_supported())


def look(torch):
    found = {
        "version": str(torch.__version__),
        "cuda_available": guarded(lambda: bool(torch.cuda.is_available())),
        "num_threads": guarded(torch.get_num_threads),
        "cpu_capability": guarded(torch.backends.cpu.get_cpu_capability),
        "error": cuda_error(torch),
        "mkl": guarded(lambda: mkl_version(torch.__config__.show())),
    }
    if found["cuda_available"] is True:
        found.update(gpu_facts(torch))
        found["libraries"] = guarded(mapped)
        return found
    none = nothing("torch sees no GPU")
    names = ("device_count", "cudnn", "nccl", "tf32_matmul", "tf32_cudnn", "bf16_native", "capabilities", "links")
    found.update(dict.fromkeys(names, none))
    found["arch_list"] = guarded(torch._C._cuda_getArchFlags().split) if torch.version.cuda else none
    found["libraries"] = guarded(mapped)
    return found


LIBRARIES = ("libcu", "libnccl", "libnv", "libstdc++", "libgomp", "libomp", "libiomp5", "libmkl_rt", "libmkl_intel_thread")


def mapped():
    """Return the files of the libraries that two parts of one program easily bring twice."""
    with open("/proc/self/maps") as file:
        paths = {line.split(None, 5)[5].rstrip("\n") for line in file if line.count(" /") == 1}
    return sorted(path for path in paths if path.rpartition("/")[2].startswith(LIBRARIES))


def mkl_version(text):
    """Return the version in "Intel(R) oneAPI Math Kernel Library Version 2024.2-Product Build 20240605 for Intel(R) 64"."""
    for line in text.splitlines():
        if "Math Kernel Library Version" in line:
            return line.partition("Version")[2].strip().split("-")[0].split()[0]
    return nothing("built without MKL")


def told(error):
    """Return an error with the one that it was raised from, and the file in which that one was, if it is not torch's own."""
    first = error
    while first.__cause__ is not None:
        first = first.__cause__
    words = one_line(error)
    if first is not error:
        words += "; caused by " + one_line(first)
    place, frame = "", first.__traceback__
    while frame is not None:
        name = frame.tb_frame.f_code.co_filename
        place = name if "-packages/" in name and "/torch/" not in name else place
        frame = frame.tb_next
    return words + (", in " + place if place else "")


def one_line(error):
    words = str(error).strip().splitlines() or [""]
    return "%s: %s" % (type(error).__name__, brief(words[0]))


def say(fields):
    """Write a line of its own past sys.stdout, whose encoding PYTHONIOENCODING may have made anything, and which others may have replaced."""
    sys.stdout.flush()
    with os.fdopen(os.dup(1), "wb") as out:
        out.write(b"\n" + json.dumps(fields).encode("ascii") + b"\n")


def main():
    warnings.simplefilter("ignore")
    sys.path[:] = [entry for entry in sys.path if entry]
    try:
        torch = importlib.import_module("torch")  # not a statement: this file's package may not depend on torch
    except Exception as error:
        say({"import_error": told(error)})
        return
    lacking = next((name for name in ("__version__", "Tensor") if not hasattr(torch, name)), "")
    if lacking:
        place = getattr(torch, "__file__", None) or ", ".join(getattr(torch, "__path__", [])) or "no file"
        words = "%s is imported in place of PyTorch, which it is not (it has no %s)" % (place, lacking)
        say({"import_error": words})
        return
    say(look(torch))


if __name__ == "__main__":
    main()
