"""How a person gives the kernel an argument where a file shows which boot loader there is, and no tool of ours speaks to it.

Sources: Proxmox VE, Host Bootloader; raspberrypi.com, The kernel command line (cmdline.txt); flash-kernel(8); u-boot-update(8); Alpine's update-extlinux; docs.armbian.com,
armbianEnv.txt; the Syslinux wiki, EXTLINUX; ukify(1), kernel-install(8), mkinitcpio(8), dracut(8) on unified kernel images.
"""

from __future__ import annotations

from torchtune_sys.host.base import Host
from torchtune_sys.model.values import Missing

WORD = "ARGUMENT"
"""What stands for the argument."""
_RASPBERRY = f"add {WORD} to the one line of {{}}, and reboot"
_UKI_FOLDERS = ("/efi/EFI/Linux", "/boot/EFI/Linux", "/boot/efi/EFI/Linux")
_CMDLINE = f"add {WORD} to /etc/kernel/cmdline, then make the unified kernel images anew"
_UKI = {
    "mkinitcpio": f"{_CMDLINE}: sudo mkinitcpio -P",
    "ukify": f"{_CMDLINE}: sudo kernel-install add-all",
    "dracut": f'kernel_cmdline+=" {WORD} " in a file of /etc/dracut.conf.d, then: sudo dracut --uefi --force --regenerate-all',
}
"""Program that makes such images → what to do."""
_BY_FILE = {
    "/boot/firmware/cmdline.txt": _RASPBERRY.format("/boot/firmware/cmdline.txt"),
    "/boot/cmdline.txt": _RASPBERRY.format("/boot/cmdline.txt"),
    "/etc/default/flash-kernel": f"add {WORD} to LINUX_KERNEL_CMDLINE in /etc/default/flash-kernel, then: sudo flash-kernel",
    "/etc/default/u-boot": f"add {WORD} to U_BOOT_PARAMETERS in /etc/default/u-boot, then: sudo u-boot-update",
    "/etc/update-extlinux.conf": f"add {WORD} to default_kernel_opts in /etc/update-extlinux.conf, then: update-extlinux, as root",
    "/boot/armbianEnv.txt": f"add {WORD} to the line extraargs= of /boot/armbianEnv.txt, and reboot",
    "/boot/extlinux/extlinux.conf": f"add {WORD} to the line APPEND of /boot/extlinux/extlinux.conf, and reboot",
}
"""In this order: what makes another of these files goes before it."""
_PROXMOX = ("/etc/kernel/proxmox-boot-uuids", "/etc/kernel/cmdline")


def probe(host: Host) -> tuple[str, bool]:
    """Return what a person does, with :data:`WORD` in it, and whether a tool that is there as well (update-grub) would be the wrong one."""
    if all(host.exists(path) is True for path in _PROXMOX):
        words = (
            f"add {WORD} to the one line of /etc/kernel/cmdline, then: sudo proxmox-boot-tool refresh; where proxmox-boot-tool status "
            "says grub, to GRUB_CMDLINE_LINUX in /etc/default/grub, then: sudo update-grub"
        )
        return words, True
    return _by_image(host) or next((words for path, words in _BY_FILE.items() if host.exists(path) is True), ""), False


def _by_image(host: Host) -> str:
    """Return what to do where the kernels are images that hold their arguments."""
    listed = [host.names(folder) for folder in _UKI_FOLDERS]
    if not any(name.endswith(".efi") for names in listed if not isinstance(names, Missing) for name in names):
        return ""
    places = ("/usr/bin", "/usr/lib/systemd", "/usr/sbin")
    return next((words for tool, words in _UKI.items() if any(host.exists(f"{at}/{tool}") is True for at in places)), "")


def grub_resets(host: Host) -> tuple[str, ...]:
    """Return the lines (path and number) behind our file of /etc/default/grub.d that set GRUB_CMDLINE_LINUX anew (grub-mkconfig reads them as a shell does)."""
    from torchtune_sys.model.plan_context import GRUB_FILE
    from torchtune_sys.probes.drop_ins import files_by_name

    folder, _, ours = GRUB_FILE.rpartition("/")
    found = []
    for name, path in files_by_name(host, (folder,), ".cfg").items():
        text = host.text(path) if name > ours else ""
        for number, line in enumerate([] if isinstance(text, Missing) else text.split("\n"), 1):
            key, _, value = line.strip().partition("=")
            if key == "GRUB_CMDLINE_LINUX" and "GRUB_CMDLINE_LINUX" not in value.replace("GRUB_CMDLINE_LINUX_DEFAULT", ""):
                found.append(f"{path}:{number}")
    return tuple(found)
