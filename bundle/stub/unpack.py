"""Unpack what this interpreter needs: once, as a whole or not at all, where nobody else may write."""

import itertools
import os
import time

from refuse import content, say

PAYLOAD = "payload.zip"
PAYLOAD_SHA256 = ""
OLD_DAYS = 30
PATIENCE_S = 20


class Unusable(Exception):
    """Why a folder cannot be used."""


def unpack(start, tag):
    """The folder with everything for this interpreter, whole."""
    import hashlib
    import io
    import zipfile

    packed = content(start, PAYLOAD)
    if hashlib.sha256(packed).hexdigest() != PAYLOAD_SHA256:
        say("%s is damaged; copy the file again, whole" % start.FILE)
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        files = {}
        for info in archive.infolist():
            folder, path = info.filename.split("/", 1)
            if folder in ("common", tag):
                files[path] = info
        return somewhere(start, tag, archive, files)


def somewhere(start, tag, archive, files):
    """In the first folder that serves; from memory where libraries may be mapped from none of them."""
    tried = []
    for mapped in (map_file, map_memory):
        for place in itertools.chain(start.places(), own_names(start)):
            try:
                return usable(start, place, tag, archive, files, mapped)
            except (Unusable, EnvironmentError) as error:
                tried.append("%s (%s)" % (place, getattr(error, "strerror", None) or error))
    shown = [words for number, words in enumerate(tried) if words not in tried[:number]]
    words = ", ".join(shown) or "the usual ones are somebody else's"
    return say("no directory to unpack to: %s; name one that this user may write: TORCHTUNE_SYS_CACHE=/directory" % words)


def own_names(start):
    """Where somebody else has the usual names: names that nobody could know. Later starts find them."""
    import shutil
    import tempfile

    for folder in start.SHARED:
        try:
            place = tempfile.mkdtemp(prefix="torchtune-sys-%d-" % os.geteuid(), dir=os.path.realpath(folder))
        except EnvironmentError:
            continue
        yield place
        shutil.rmtree(place, ignore_errors=True)  # it did not serve


def usable(start, place, tag, archive, files, mapped):
    """The unpacked folder below ``place``, made if need be."""
    above = os.path.dirname(place)
    if mapped is map_file and os.path.isdir(above) and os.statvfs(above).f_flag & start.NOEXEC:
        raise Unusable("mounted noexec")
    own_folder(place)
    why = start.distrust(place)
    if why:
        raise Unusable(why)
    folder = os.path.join(place, "%s-%s" % (start.ID, tag))
    if not whole(folder, files):
        with Turn(place):
            if not whole(folder, files):
                fill(folder, archive, files)
                sweep(start, place, folder)
    for path in files:
        if path.endswith(".so"):
            mapped(os.path.join(folder, path))
    mark(start, folder)
    return folder


def own_folder(place):
    """Ours alone; of what leads there only the folder above it is made."""
    above = os.path.dirname(place)
    for path in (above, place):
        try:
            os.mkdir(path, 0o700)
        except OSError:
            if not os.path.isdir(path):
                raise


class Turn(object):
    """One unpacks, the others wait: bounded, and where locks do not work, all unpack, and one of them wins."""

    def __init__(self, place):
        self.path = os.path.join(place, ".lock")

    def __enter__(self):
        import fcntl

        self.number = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        until = time.time() + PATIENCE_S
        while time.time() < until:
            try:
                fcntl.flock(self.number, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                time.sleep(0.02)
            except OSError:
                return

    def __exit__(self, *_):
        os.close(self.number)


def whole(folder, files):
    """Whether every file is there as it was packed: a crash of the machine loses what was not yet written, cleaners of /tmp remove what was not used."""
    import zlib

    try:
        for path, info in files.items():
            with open(os.path.join(folder, path), "rb") as file:
                if zlib.crc32(file.read()) & 0xFFFFFFFF != info.CRC:
                    return False
    except EnvironmentError:
        return False
    return True


def fill(folder, archive, files):
    """Beside its place first, then renamed: it is there as a whole, or not at all."""
    import shutil
    import tempfile

    made = tempfile.mkdtemp(prefix=".new-", dir=os.path.dirname(folder))
    try:
        for path, info in sorted(files.items()):
            where = os.path.join(made, path)
            if not os.path.isdir(os.path.dirname(where)):
                os.makedirs(os.path.dirname(where), 0o700)
            with open(where, "wb") as file:
                file.write(archive.read(info))
            os.utime(where, (time.time(), 315532800))  # noted in .pyc files: the same on every host, after 1980-01-01
        if os.path.isdir(folder):
            damaged = tempfile.mkdtemp(prefix=".old-", dir=os.path.dirname(folder))
            os.rename(folder, damaged)
            shutil.rmtree(damaged, ignore_errors=True)
        os.rename(made, folder)
    except BaseException as error:
        shutil.rmtree(made, ignore_errors=True)
        if not (isinstance(error, EnvironmentError) and whole(folder, files)):  # somebody else was faster
            raise


def mark(start, folder):
    """Looked through since this boot; such marks are believed. A folder that may not be written is looked through each time."""
    checked = os.path.join(folder, ".checked")
    try:
        if not os.path.isdir(checked):
            os.mkdir(checked, 0o700)
        path = os.path.join(checked, start.boot())
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600))
        os.utime(path, None)
        for name in os.listdir(checked):  # one for each boot of each host that shares the home
            other = os.path.join(checked, name)
            if time.time() - os.stat(other).st_mtime > 2 * start.DAY_S:
                os.unlink(other)
    except EnvironmentError:
        pass


def sweep(start, place, kept):
    """Remove what nobody started for a month, and what was left by one that was killed."""
    import shutil

    for name in os.listdir(place):
        path = os.path.join(place, name)
        if path == kept or os.path.islink(path) or not os.path.isdir(path):
            continue
        marks = os.path.join(path, ".checked")
        seen_at = [path] + ([os.path.join(marks, mark) for mark in os.listdir(marks)] if os.path.isdir(marks) else [])
        age_s = time.time() - max(os.stat(at).st_mtime for at in seen_at)
        if age_s > (3600 if name.startswith(".") else OLD_DAYS * start.DAY_S):
            shutil.rmtree(path, ignore_errors=True)


def map_file(path):
    """Raise OSError where the kernel does not let the file be mapped as code."""
    import mmap

    with open(path, "rb") as file:
        mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_EXEC).close()


def map_memory(path):
    """The same for a copy of it in memory."""
    import mmap

    with open(path, "rb") as file:
        packed = file.read()
    number = os.memfd_create("torchtune-sys")
    try:
        os.write(number, packed)
        mmap.mmap(number, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_EXEC).close()
    finally:
        os.close(number)
