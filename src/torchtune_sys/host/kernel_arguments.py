"""The kernel boot arguments whose values are shown. Values of all others are hidden as possible secrets.

Names of Linux (Documentation/admin-guide/kernel-parameters.txt), of systemd (kernel-command-line(7)), dracut (dracut.cmdline(7)) and of
initramfs-tools (initramfs-tools(7)). What fetches something (``ip=``, ``nfsroot=``, ``inst.ks=``, ``ds=``, ``rd.iscsi.*``) is not among them.
"""

from __future__ import annotations

_NAMES = frozenset(
    (
        "BOOT_IMAGE", "BOOTIF", "initrd", "root", "rootfstype", "rootdelay", "rootwait", "ro", "rw", "init", "resume", "resume_offset", "quiet",
        "splash", "rhgb", "ostree", "boot", "LANG", "locale", "keyboard", "console", "consoleblank", "loglevel", "printk.devkmsg", "debug", "panic",
        "panic_on_warn", "oops", "crash_kexec_post_notifiers", "crashkernel", "kexec_core.load_limit_reboot", "nosmt", "noibrs", "noibpb", "nopti",
        "pti", "mce", "mitigations", "spectre_v2", "spectre_v2_user", "spec_store_bypass_disable", "spec_rstack_overflow", "l1tf", "mds", "tsx",
        "tsx_async_abort", "mmio_stale_data", "retbleed", "srbds", "gather_data_sampling", "reg_file_data_sampling", "kvm", "hyperv", "nohz",
        "nohz_full", "isolcpus", "irqaffinity", "kthread_cpus", "rcu_nocbs", "rcu_nocb_poll", "skew_tick", "tsc", "clocksource", "hpet", "idle",
        "intel_idle.max_cstate", "max_cstate", "intel_pstate", "amd_pstate", "cpufreq.default_governor", "cpuidle.off", "cpuidle.governor", "nosoftlockup",
        "nowatchdog", "nmi_watchdog", "watchdog", "softlockup_panic", "hung_task_panic", "audit", "audit_backlog_limit", "selinux", "enforcing",
        "apparmor", "security", "lsm", "lockdown", "module.sig_enforce", "fips", "ima_policy", "ima_appraise", "integrity_audit", "evm", "random.trust_cpu",
        "random.trust_bootloader", "maxcpus", "nr_cpus", "possible_cpus", "mem", "memmap", "memtest", "movable_node", "movablecore", "kernelcore", "cma",
        "hugepages", "hugepagesz", "hugetlb_cma", "default_hugepagesz", "hugetlb_free_vmemmap", "transparent_hugepage", "numa", "numa_balancing",
        "numa_zonelist_order", "zswap.enabled", "zswap.compressor", "zswap.zpool", "swapaccount", "cgroup_disable", "cgroup_enable", "cgroup_no_v1",
        "cgroup.memory", "psi", "page_poison", "page_alloc.shuffle", "page_owner", "init_on_alloc", "init_on_free", "slab_nomerge", "slub_debug", "kasan",
        "kfence.sample_interval", "kmemleak", "randomize_kstack_offset", "vsyscall", "ftrace", "elevator", "noresume", "nomodeset", "vga", "video",
        "fbcon", "efifb", "biosdevname", "net.ifnames", "noapic", "nolapic", "x2apic", "nox2apic", "intremap", "earlyprintk", "earlycon", "kgdboc",
        "no_timer_check", "preempt", "threadirqs", "sched_tick_max_deferment", "nvme_core.io_timeout", "nvme_core.multipath", "pcie_aspm", "pcie_ports",
        "pcie_port_pm", "pcie_acs_override", "libata.force", "scsi_mod.use_blk_mq", "dm_mod.use_blk_mq", "rd.lvm.lv", "rd.lvm.vg", "rd.lvm", "rd.md",
        "rd.md.uuid", "rd.dm", "rd.luks", "rd.luks.uuid", "rd.driver.blacklist", "rd.driver.pre", "rd.driver.export", "rd.shell", "rd.emergency",
        "rd.systemd.show_status", "rd.udev.log_level", "rd.break", "rd.debug", "modprobe.blacklist", "module_blacklist", "modules-load", "modules_load",
        "initcall_blacklist", "luks.uuid", "fsck.mode", "fsck.repair", "raid", "dyndbg", "trace_event", "ttyS0", "cloud-init", "skip_duid", "rootflags",
        "bootdev", "ds_type", "mdadm", "acpi_osi", "acpi_enforce_resources", "acpi_backlight", "nospec_store_bypass_disable", "nosplash", "vt.handoff",
    )
)  # fmt: skip
_MODULES = frozenset(
    (
        "sysctl", "nouveau", "amdgpu", "amdkfd", "radeon", "i915", "xe", "ast", "mgag200", "ice", "ixgbe", "i40e", "ena", "gve", "efa", "mpt3sas",
        "megaraid_sas", "intel_iommu", "iommufd", "processor", "intel_idle", "workqueue", "rcutree", "rcupdate", "psmouse", "usbcore", "usb_storage",
        "usbhid", "mce", "memory_hotplug", "loop", "nbd", "zram", "zfs", "btrfs", "xfs", "ext4", "overlay", "bridge", "bonding",
    )
)  # fmt: skip
_BEGINNINGS = (
    "nvidia", "nova", "amd_iommu", "iommu", "nvme", "vfio", "kvm", "pci", "acpi", "apic", "sched", "snd", "efi", "edac", "ghes", "xen", "virtio",
)  # fmt: skip
_BEGINNINGS_OF_MORE = ("mlx4_", "mlx5_", "ib_", "rdma_", "bnxt_", "hv_")
_OF_SYSTEMD = frozenset(
    (
        "unit", "target", "log_level", "log_target", "show_status", "unified_cgroup_hierarchy", "legacy_systemd_cgroup_controller", "mask", "wants",
        "debug_shell", "machine_id", "firstboot", "gpt_auto", "swap", "volatile", "default_timeout_start_sec", "cpu_affinity", "random_seed",
    )
)  # fmt: skip


def harmless(name: str) -> bool:
    """Return whether the value of this argument may be shown.

    >>> harmless("intel_iommu"), harmless("nvidia-drm.modeset"), harmless("root"), harmless("sysctl.vm.swappiness")
    (True, True, True, True)
    >>> harmless("iscsi_password"), harmless("inst.ks"), harmless("systemd.set_credential"), harmless("ceph.secret")
    (False, False, False, False)
    """
    plain = name.replace("-", "_")
    return name in _NAMES or plain in _NAMES or _is_of_a_family(plain)


def _is_of_a_family(name: str) -> bool:
    """Arguments of a module or of a part of the kernel, ``module.parameter``."""
    family, _, rest = name.partition(".")
    if family == "systemd":
        return rest.partition(".")[0] in _OF_SYSTEMD
    if not family.replace("_", "a").isalnum():
        return False
    is_more = any(family.startswith(each) and family != each for each in _BEGINNINGS_OF_MORE)
    return family in _MODULES or family.startswith(_BEGINNINGS) or is_more
