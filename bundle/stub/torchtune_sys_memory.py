"""Extension modules from memory: where no file system that may be written allows its files to be executed (noexec)."""

import os
import sys
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader
from importlib.util import spec_from_file_location


class Finder:
    """Finds extension modules below one folder; each is copied into a nameless file in memory and loaded from there."""

    def __init__(self, folder):
        self.folder = folder

    def find_spec(self, name, path=None, target=None):
        base = os.path.join(self.folder, *name.split("."))
        for suffix in EXTENSION_SUFFIXES:
            if os.path.exists(base + suffix):
                place = in_memory(base + suffix)
                return spec_from_file_location(name, place, loader=ExtensionFileLoader(name, place))
        return None


def in_memory(path):
    """A path at which the file's content can be mapped as code while this process lives."""
    with open(path, "rb") as file:
        content = file.read()
    number = os.memfd_create(os.path.basename(path))
    with os.fdopen(number, "wb", closefd=False) as copy:
        copy.write(content)
    return "/proc/self/fd/%d" % number


def install(folder):
    sys.meta_path.insert(0, Finder(folder))
