"""Patterns of kernel messages, and the kind of event that each means. Formats are those of the sources named beside each group."""

from __future__ import annotations

PCI = r"(?P<subject>(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{1,4}:[0-9a-fA-F]{2}(?:[.:][0-9a-fA-F]{1,2})?(?:\.[0-7])?)"
_LIBRARIES = (
    r"(?:lib(?:cuda|nccl|rccl|torch|c10|cudnn|cublas|cusparse|cusolver|cufft|curand|nvidia|nvrtc|nvJitLink|mlx5|ibverbs|amdhip|hsa-runtime|MIOpen|hip|roc"
    r"|mkl|iomp|gomp|triton|aotriton)|[\w.]{1,60}\.cpython-\d{2,3})[\w.+-]*"
)
"""Libraries of training, and extension modules of CPython."""

_REFUSED = (
    r"IN=(?P<who>[\w.-]{1,16}) OUT= .{0,100}?SRC=(?P<subject>(?:10|192\.168|172\.(?:1[6-9]|2\d|3[01]))\.[\d.]{3,11}|f[cd][0-9a-f]{2}:[0-9a-f:]{1,34}) "
    r".{0,200}? PROTO=TCP .{0,40}?\bDPT=(?P<code>\d{1,5}) .{0,80}?\bSYN URGP="
)
"""The start of a TCP connection that was refused."""

_NODES = r"(?:/dev/)?(?:nvidia(?:\d{1,4}|ctl|-uvm|-cap\d{1,4}|-caps(?:-imex-channels)?/[\w.-]{1,40})|kfd|(?:dri/)?renderD\d{1,4}|(?:accel/)?accel\d{1,4}|(?:infiniband/)?uverbs\d{1,4})"
"""Nodes of accelerators and of RDMA adapters that a training needs; SELinux names the last part of a path where it is opened."""


class Shared(str):
    """A word that ordinary lines hold, too: a log is not searched for it, since each line that matters holds one of the other words."""

    __slots__ = ()


ROWS: tuple[tuple[str, str, str], ...] = (
    # A word that the line holds, the kind of the event, the pattern: the first row that matches a line decides.
    # NVIDIA/open-gpu-kernel-modules: src/nvidia/src/kernel/gpu/.../nvErrorLog, arch/nvalloc/unix/src/osinit.c, kernel-open/nvidia/nv.c
    (Shared("NVRM: Xid"), "xid", rf"NVRM: Xid \((?:PCI:)?{PCI}[^)]*\)[^:]{{0,40}}: (?P<code>\d{{1,6}})\b(?:.*?\bname=(?P<who>[^,<]{{1,40}}))?"),
    (Shared("fallen off the bus"), "gpu-lost", rf"NVRM: .*?(?:GPU |PCI:){PCI}.*fallen off the bus"),
    (Shared("fallen off the bus"), "gpu-lost", r"NVRM: .*fallen off the bus"),
    ("device inaccessible", "gpu-lost", rf"nvidia {PCI}: Unable to change power state from D3\w+ to D0, device inaccessible"),
    (Shared("RmInitAdapter failed"), "gpu-init", rf"NVRM: (?:GPU {PCI}: )?RmInitAdapter failed"),
    (Shared("rm_init_adapter failed"), "gpu-init", rf"NVRM: GPU {PCI}: rm_init_adapter failed"),
    (Shared("API mismatch"), "api-mismatch", r"NVRM: API mismatch(?:.*module has the version (?P<who>[\w.]{1,20}\w))?"),
    (Shared("Legacy"), "gpu-legacy", r"NVRM: .*supported through the NVIDIA (?P<who>[\w.]{1,20}) Legacy"),
    (Shared("not supported by open"), "gpu-needs-proprietary", r"NVRM: .*not supported by open"),
    (Shared("requires use of the"), "gpu-needs-open", r"NVRM: .*requires use of the"),
    (Shared("system is not supported by the"), "gpu-unsupported", r"NVRM: (?:installed )?in this system is not supported by the"),
    (Shared("64-bit BAR mapped above 4GB"), "gpu-bar", r"NVRM: This is a 64-bit BAR mapped above 4GB"),
    (Shared("I/O region assigned"), "gpu-bar", r"NVRM: This PCI I/O region assigned to your NVIDIA device is invalid"),
    (Shared("already bound to"), "gpu-bound", rf"NVRM: GPU {PCI} is already bound to (?P<who>\w+)"),
    # drivers/gpu/drm/nouveau: nvkm/engine/device/base.c, nouveau_ttm.c; what one of its units prints while it drives the GPU (nvkm/core/subdev.c)
    (Shared("nouveau "), "gpu-bound", rf"(?P<who>nouveau) {PCI}: (?:NVIDIA [A-Z]{{1,3}}\d|DRM: VRAM|(?:fifo|gr|disp|fb|bus|mmu|therm|gsp|ce\d?): \w)"),
    (Shared("probe routine failed"), "gpu-probe-failed", r"NVRM: The NVIDIA probe routine failed for (?P<code>\d{1,4})\b"),
    (Shared("probe routine was"), "gpu-not-probed", r"NVRM: The NVIDIA probe routine was not called for (?P<code>\d{1,4})\b"),
    (Shared("loading NVIDIA UNIX"), "driver-load", r"NVRM: loading NVIDIA UNIX"),
    # src/nvidia/src/kernel/gpu/gsp/kernel_gsp.c (_kgspLogRpcTimeout, _kgspLogXid119): the heading of what it prints with Xid 119
    ("GSP Timeout", "gsp-timeout", r"NVRM: .{0,60}: \*{9,} GSP Timeout \*{9,}"),
    # src/common/sdk/nvidia/inc/nvstatuscodes.h, in checks that failed (src/nvidia/inc/libraries/utils/nvassert.h)
    (Shared("[NV_ERR_GPU_IN_FULLCHIP_RESET]"), "gpu-in-reset", r"NVRM: .{1,160}\[NV_ERR_GPU_IN_FULLCHIP_RESET\]"),
    (Shared("[NV_ERR_RESET_REQUIRED]"), "gpu-in-reset", r"NVRM: .{1,160}\[NV_ERR_RESET_REQUIRED\]"),
    (Shared("[NV_ERR_NO_MEMORY]"), "driver-no-memory", r"NVRM: .{1,160}\[NV_ERR_NO_MEMORY\]"),
    ("gsp_", "gsp-firmware", rf"nvidia {PCI}: Direct firmware load for (?P<who>\S*gsp_\S*) failed with error -2"),
    (Shared("RmFetchGspRmImages"), "gsp-firmware", r"NVRM: .*RmFetchGspRmImages: No firmware image found"),
    # kernel-open/nvidia-uvm/uvm_pmm_gpu.c (devmem_alloc_pagemap), nvidia-peermem/nvidia-peermem.c; Linux kernel/module/version.c, main.c
    ("request_free_mem_region() err", "uvm-hmm", r"nvidia-uvm: \S{1,40}:\d{1,6} devmem_alloc_pagemap\[pid:\d+\] request_free_mem_region\(\) err -\d+"),
    ("ib_register_peer_memory_client", "peermem-refused", r"(?:nvidia_peermem|nv_peer_mem): (?:disagrees about version of|Unknown) symbol ib_register_peer_memory_client"),
    ("detected invalid context", "peermem-context", r"nvidia-peermem nv_\w{1,60}:\d{1,6} ERROR detected invalid context"),
    (Shared("SXid"), "sxid", rf"nvidia-nvswitch\d+: SXid \(PCI:{PCI}\): (?P<code>\d{{1,6}})\b(?:, (?P<who>Fatal|Non-fatal))?"),
    # NVIDIA's fabric manager, of what the switches' driver told it
    (Shared("detected NVSwitch"), "sxid", rf"detected NVSwitch (?P<who>fatal|non-fatal) error (?P<code>\d{{1,6}}) on fid \d{{1,3}} on NVSwitch pci bus id {PCI}"),
    # Linux: kernel/module/signing.c, security/lockdown; modprobe's own words
    ("unsigned module", "module-refused", r"Lockdown: (?P<who>\S+): unsigned module loading is restricted|Loading of unsigned module is rejected"),
    ("unavailable key", "module-refused", r"Loading of module with unavailable key is rejected"),
    (Shared("Key was rejected"), "module-refused", r"could not insert '(?P<who>[\w-]+)': Key was rejected by service"),
    # Linux: kernel/module/main.c (check_modinfo), kernel/module/version.c (check_version)
    (Shared("version magic"), "module-of-other-kernel", r"(?P<who>nvidia(?:[-_](?:uvm|drm|modeset))?|amdgpu|amdkcl): version magic '[^']{0,120}' should be "),
    (Shared("disagrees about version of symbol module_layout"), "module-of-other-kernel", r"(?P<who>nvidia(?:[-_](?:uvm|drm|modeset))?|amdgpu|amdkcl): disagrees about version of symbol module_layout"),
    # Linux: drivers/iommu/amd/iommu.c, drivers/iommu/intel/dmar.c
    ("IO_PAGE_FAULT", "iommu-fault", rf"nvidia {PCI}: AMD-Vi: Event logged \[IO_PAGE_FAULT"),
    ("IO_PAGE_FAULT", "iommu-fault", rf"\[?IO_PAGE_FAULT device=(?:[0-9a-f]{{4}}:)?{PCI}"),
    ("DMAR: [", "iommu-fault", rf"DMAR: \[DMA (?:Read|Write)[^\]]*\] Request device \[(?:[0-9a-f]{{4}}:)?{PCI}\]"),
    # drivers/iommu/arm/arm-smmu-v3/arm-smmu-v3.c (arm_smmu_dump_event); before 6.14 it printed the stream's number alone
    (" client: ", "iommu-fault", rf"arm-smmu-v3 \S{{1,40}}: event: F_\w{{1,20}} client: {PCI} sid:"),
    # Linux: drivers/pci/pcie/aer.c, dpc.c, drivers/pci/hotplug/pciehp_ctrl.c
    (Shared("Bus Error: severity=Uncorrect"), "aer-uncorrected", rf"{PCI}: (?:AER: )?\w+ Bus Error: severity=Uncorrect\w+ \((?P<who>[\w-]+)\), type=[\w ]+"),
    (Shared("Bus Error: severity=Correct"), "aer-corrected", rf"{PCI}: (?:AER: )?\w+ Bus Error: severity=Correct\w+, type=(?P<who>[\w ]+)"),
    # pcie/err.c: after an uncorrected error, of which the line before may be lost
    (Shared("AER: "), "aer-lost", rf"{PCI}: AER: (?:can't recover \((?P<who>no error_detected callback)\)|device recovery failed)"),
    ("DPC: containment", "pcie-contained", rf"{PCI}: DPC: containment event"),
    ("pciehp: Slot(", "slot-down", rf"{PCI}: pciehp: Slot\((?P<who>[^)]{{1,40}})\): Link Down"),
    # Linux: drivers/pci/pci.c (__pcie_print_link_status), printed of every device when it is found, and by drivers of network cards
    (Shared("bandwidth, limited"), "pcie-narrow", rf"[\w-]{{2,20}} {PCI}: [\d.]{{3,12}} Gb/s available PCIe bandwidth, limited by [\d.]{{1,5}} GT/s (?:PCIe )?x(?P<code>\d{{1,2}}) link at \S{{1,20}} \(capable of .{{1,40}} x(?P<most>\d{{1,2}}) link\)"),
    # Linux: mm/oom_kill.c
    ("ut of memory: Kill", "oom-kill", r"(?P<subject>Memory cgroup out of memory|Out of memory): Kill(?:ed)? process \d+,? \(?(?P<who>[^),]{1,40})"),
    # The head of the killer's report, and what it says of a full cgroup (mm/oom_kill.c, dump_header; mm/memcontrol.c, mem_cgroup_print_oom_meminfo)
    ("invoked oom-killer: ", "oom-report", r"(?:kernel: |\] |^)(?P<who>\S.{0,14}?) invoked oom-killer: gfp_mask=0x"),
    ("memory: usage ", "oom-report", r"(?P<subject>memory): usage \d{1,16}kB, limit \d{1,16}kB, failcnt \d"),
    ("slurmstepd: error: Detected", "oom-kill", r"slurmstepd: error: (?P<subject>Detected) \d{1,9} oom[-_]kill event\S{0,3} in (?P<who>(?:StepId=|step )[\w.+]{1,30}\w)"),
    # Killers in user space: systemd src/oom/oomd-manager.c, earlyoom kill.c, Talos internal/app/machined/pkg/controllers/runtime/oom.go
    ("systemd-oomd[", "oom-kill", r"systemd-oomd\[\d+\]: (?P<subject>Killed) (?P<who>\S{1,120}) due to memory (?:pressure|used)"),
    (Shared("to process "), "oom-kill", r"(?P<subject>sending) SIG(?:TERM|KILL) to process \d+ uid \d+ \"(?P<who>[^\"]{1,40})\": (?:oom_score|badness) \d"),
    ("SIGKILL to cgroup ", "oom-kill", r"\[talos\] (?P<subject>Sending) SIGKILL to cgroup \{.*?\"cgroup\": \"(?P<who>[^\"]{1,160})\""),
    # Linux: kernel/panic.c (vpanic); arch/x86/kernel/dumpstack.c and arch/arm64/kernel/traps.c (die), arch/x86/mm/fault.c, lib/bug.c, mm/page_alloc.c
    ("Kernel panic", "panic", r"(?<!end )Kernel panic - not syncing: \S"),
    # arm64's die() prints the error code unpadded ("Oops - undefined instruction: 0 [#1]") until 5.18, in 16 digits from there on
    (Shared("Internal error: "), "oops", r"Internal error: [^:\[]{2,80}: [0-9a-f]{1,16} \[#\d{1,3}\]"),
    (" [#", "oops", r"(?:Internal error: |Oops: )?\w[^:]{2,80}: [0-9a-f]{4,16} \[#\d{1,3}\](?= [A-Z]|\s*$)"),
    ("BUG: ", "oops", r"BUG: (?:kernel NULL pointer dereference|unable to handle|Bad page (?:state|map))"),
    ("kernel BUG at ", "oops", r"kernel BUG at \S+:\d+!"),
    ("Unable to handle kernel", "oops", r"Unable to handle kernel (?:NULL pointer|paging request|\w+ read|\w+ write|access to)"),
    # Linux: fs/file_table.c, kernel/cgroup/pids.c, net/netfilter/nf_conntrack_core.c, net/core/neighbour.c (until 4.x net/ipv4/route.c)
    ("file-max limit", "file-table-full", r"VFS: file-max limit (?P<code>\d{1,20}) reached"),
    ("fork rejected", "fork-rejected", r"cgroup: fork rejected by pids controller in (?P<subject>\S{1,300})"),
    # WSL2-Linux-Kernel: drivers/hv/dxgkrnl/ioctl.c; other calls fail at each start (-22, -2), and nothing comes of it
    ("dxgkio_make_resident", "dxg-refused", r"dxgk: dxgkio_make_resident: Ioctl failed: -12"),
    ("table full", "conntrack-full", r"(?:nf|ip)_conntrack: table full(?:, | in )"),
    # Linux: net/netfilter/nf_log_syslog.c; before it the words of ufw, and of firewalld with LogDenied. Peers have private addresses, scanners hardly ever.
    ("UFW BLOCK] IN=", "firewall-drop", rf"\[UFW BLOCK\] {_REFUSED}"),
    ("REJECT: IN=", "firewall-drop", rf"(?:FINAL|filter_IN_\w{{1,40}})_REJECT: {_REFUSED}"),
    # Linux: net/ipv4/tcp.c (tcp_check_oom); kernel/audit.c (audit_log_start); drivers/thermal/intel/intel_powerclamp.c
    ("tuning tcp_mem", "tcp-memory-full", r"TCP: out of memory -- consider tuning tcp_mem"),
    ("audit_backlog_limit=", "held-up", r"audit: (?P<subject>audit_backlog)=\d{1,9} > audit_backlog_limit=\d{1,9}"),
    ("idle injection", "held-up", r"(?P<subject>intel_powerclamp): Start idle injection to reduce power"),
    ("table overflow", "neighbours-full", r"(?P<subject>arp_cache|ndisc_cache): neighbor table overflow!|[Nn]eighbour table overflow"),
    # Linux: drivers/thermal/thermal_core.c, kernel/reboot.c (hw_protection_shutdown; from 6.15 __hw_protection_trigger, which may restart), drivers/net/ethernet/intel/ixgbe/ixgbe_main.c
    ("critical temperature", "too-hot", r"(?P<subject>thermal_zone\d+): .*critical temperature reached"),
    ("HARDWARE PROTECTION", "too-hot", r"HARDWARE PROTECTION (?:shutdown|reboot|\w+) \(Temperature too high\)"),
    ("has over heated", "too-hot", rf"\w+ {PCI}.*Network adapter has been stopped because it has over heated"),
    # Linux: drivers/gpu/drm/amd: amdgpu_device.c, amdgpu_job.c, amdgpu_drv.c, amdgpu_ras.c, pm/swsmu, amdkfd/kfd_device_queue_manager.c
    (Shared("GPU over temperature"), "too-hot", rf"amdgpu {PCI}: .*GPU over temperature range ?\(SW CTF\) detected"),
    (Shared("uncorrectable hardware error"), "amdgpu-ue", rf"amdgpu {PCI}: .*?\b(?P<code>\d{{1,9}}) (?:new )?uncorrectable hardware errors detected in (?:total in )?(?P<who>\w{{1,20}}) block"),
    ("ncorrectable hardware error", "amdgpu-ue", rf"amdgpu {PCI}: .*[Uu]ncorrectable hardware error ?\(ERREVENT_ATHUB_INTERRUPT\) detected"),
    # amdkfd/kfd_int_process_v9.c (event_interrupt_poison_consumption), amdgpu_ras_eeprom.c
    ("poison is consumed", "amdgpu-ue", rf"amdgpu {PCI}: .{{0,60}}poison is consumed by (?:client|kfd)\b"),
    ("reaches threshold value", "amdgpu-ue", rf"amdgpu {PCI}: .{{0,60}}Saved bad pages (?P<code>\d{{1,9}}) reaches threshold value \d+"),
    ("reset begin", "amdgpu-reset", rf"amdgpu {PCI}: (?:amdgpu: )?GPU reset begin!"),
    ("GPU reset", "amdgpu-reset", rf"amdgpu {PCI}: (?:amdgpu: )?GPU reset\s*$"),
    (Shared("GPU "), "amdgpu-reset-done", rf"amdgpu {PCI}: (?:amdgpu: )?GPU reset\(\d+\) succeeded!"),
    (Shared("GPU "), "amdgpu-reset-failed", rf"amdgpu {PCI}: (?:amdgpu: )?GPU (?:reset\(\d+\) failed|Recovery Failed: |reset end with ret = -)"),
    (Shared(" timeout"), "amdgpu-timeout", rf"amdgpu {PCI}: (?:amdgpu: )?(?:\[drm:amdgpu_job_timedout \[amdgpu\]\] \*ERROR\* )?ring (?P<who>[\w.]{{1,30}}) timeout, signaled"),
    (Shared(" timeout"), "amdgpu-timeout", r"\[drm:amdgpu_job_timedout \[amdgpu\]\] \*ERROR\* ring (?P<who>[\w.]{1,30}) timeout, signaled"),
    ("wait loop timeout", "amdgpu-timeout", r"qcm fence wait loop timeout expired"),
    ("failed to respond to msg=", "amdgpu-timeout", rf"amdgpu {PCI}: (?:amdgpu: )?MES(?:\(\d\))? failed to respond to msg="),
    ("failed to response msg=", "amdgpu-timeout", r"\[drm:mes_v\w{1,60}(?:\.\w{1,20}){0,3} \[amdgpu\]\] \*ERROR\* MES failed to response msg=\d+"),
    ("ASIC reset failed", "amdgpu-reset-failed", rf"amdgpu \S+: (?:amdgpu: )?ASIC reset failed with error, -\d+ for drm dev, {PCI}"),
    ("during GPU init", "amdgpu-init", rf"amdgpu {PCI}: (?:amdgpu: )?Fatal error during GPU init"),
    ("PCI rejects atomics", "amdgpu-skipped", r"kfd kfd: (?:amdgpu: )?skipped device 1002:(?P<who>[0-9a-f]{4}), PCI rejects atomics"),
    # gmc_v10_0.c and its like (gmc_v*_process_interrupt), amdkfd/kfd_svm.c (svm_range_validate_and_map); xe/xe_guc_submit.c, i915/i915_gpu_error.c (error_msg)
    ("page fault (src_id:", "program-page-fault", rf"amdgpu {PCI}: (?:amdgpu: )?\[(?:gfx|mm)hub\d?\] (?:no-retry )?page fault \(src_id:\d{{1,4}} ring:\d{{1,4}} vmid:(?P<code>\d{{1,2}}) pasid:\d+(?:,? for process (?P<who>[^ ]{{1,16}}) pid)?"),
    ("SVM mapping failed", "program-no-memory", r"amdgpu: SVM mapping failed, exceeds resident system memory limit"),
    ("Timedout job: seqno=", "program-timeout", rf"xe {PCI}: .{{0,40}}Timedout job: seqno=.{{1,120}} in (?P<who>[^\[]{{1,40}}) \["),
    ("GPU HANG: ecode ", "program-timeout", rf"i915 {PCI}: .{{0,20}}GPU HANG: ecode [\w:]{{1,40}}, in (?P<who>[^\[]{{1,40}}) \["),
    # Linux: drivers/gpu/drm/xe/xe_device.c (xe_device_declare_wedged); drivers/accel/habanalabs/common/device.c (hl_device_heartbeat)
    ("has declared device", "accelerator-lost", rf"xe {PCI}: .{{0,40}}CRITICAL: Xe has declared device \S+ as wedged"),
    ("heartbeat failed!", "accelerator-lost", rf"(?:habanalabs|accel) (?:{PCI}|(?P<other>(?:hl|accel)\d{{1,4}})): .{{0,20}}Device heartbeat failed! PCI link is broken"),
    ("finished resetting the", "accelerator-back", rf"(?:habanalabs|accel) (?:{PCI}|(?P<other>(?:hl|accel)\d{{1,4}})): .{{0,20}}Successfully finished resetting the "),
    ("Initialized xe ", "accelerator-back", rf"\[drm\] Initialized xe [\w. ]{{1,40}} for {PCI} on minor"),
    # Linux: security/apparmor/audit.c, security/selinux/avc.c, with the device that a program of a user was refused to open; what is permissive=1 was let through
    ('apparmor="DENIED"', "device-refused", rf'(?:audit: type=1400 |)audit\([\d.:]{{1,40}}\): apparmor="DENIED" operation="(?:open|file_\w{{1,20}})" .{{0,200}}? name="(?P<subject>{_NODES})" .{{0,40}}?comm="(?P<who>[^"]{{1,40}})"'),
    ("avc:  denied", "device-refused", rf'(?:audit: type=1400 |)audit\([\d.:]{{1,40}}\): avc:  denied  \{{(?: \w{{1,20}}){{0,9}} (?:open|read|write|ioctl|map)\b[\w ]{{1,80}}\}} for  pid=\d+ comm="(?P<who>[^"]{{1,40}})" (?:path|name)="(?P<subject>{_NODES})" .{{0,400}}\btclass=chr_file(?! permissive=1)'),
    # Linux: drivers/net/ethernet/mellanox/mlx5/core: health.c, events.c, en_main.c
    ("health compromised", "mlx5-fault", rf"mlx5_core {PCI}: .*?device's health compromised"),
    ("Fatal error ", "mlx5-fault", rf"mlx5_core {PCI}: .*?Fatal error \d+ detected"),
    # main.c (probe_one), drivers/base/dd.c (call_driver_probe)
    (Shared("failed with error"), "mlx5-fault", rf"mlx5_core {PCI}: (?:probe_one:\d+:\(pid \d+\): )?mlx5_(?:load_one|init_one) failed with error code -\d+"),
    (Shared("failed with error"), "mlx5-fault", rf"mlx5_core: probe of {PCI} failed with error -\d+"),
    (Shared("failed with error"), "mlx5-fault", rf"mlx5_core {PCI}: probe with driver mlx5_core failed with error -\d+"),
    (": synd 0x", "mlx5-fault", rf"mlx5_core {PCI}: .*?synd 0x0*[1-9a-f][0-9a-f]*: "),
    # Linux: drivers/infiniband/hw/efa/efa_com.c
    (Shared("any MSI-X interrupt for admin cmd"), "efa-fault", r"infiniband (?P<subject>[\w-]{1,32}): The device sent a completion but the driver didn't receive any MSI-X"),
    (Shared("any completion for admin cmd"), "efa-fault", r"infiniband (?P<subject>[\w-]{1,32}): The device didn't send any completion"),
    ("(polling) timeout", "efa-fault", r"infiniband (?P<subject>(?:efa_|rdmap)\w{1,24}): Wait for completion \(polling\) timeout"),
    ("Admin queue is closed", "efa-fault", r"infiniband (?P<subject>(?:efa_|rdmap)\w{1,24}): Admin queue is closed"),
    ("Device isn't ready", "efa-fault", r"(?:infiniband|efa) (?P<subject>\S{1,32}): Device isn't ready, (?:abort com init|can't reset)"),
    # Linux: drivers/net/ethernet/intel: ice/ice_main.c and i40e/i40e_main.c (tx_timeout); igc/igc_main.c, igb/igb_main.c, fm10k/fm10k_pci.c (rd32)
    ("recovery unsuccessful", "adapter-fault", rf"(?:ice|i40e) {PCI} .{{0,60}}tx_timeout recovery unsuccessful"),
    ("PCIe link lost", "adapter-fault", rf"(?:igc|igb|fm10k) {PCI} .{{0,60}}PCIe link lost"),
    ("Cable error", "module-fault", rf"mlx5_core {PCI}: Port module event\[error\]: module \d+, Cable error, (?P<who>.{{1,80}})"),
    ("High temperature on", "nic-hot", rf"mlx5_core {PCI}: .*High temperature on sensors"),
    (": Link down", "link-down", r"mlx5_core \S+ (?P<subject>[\w.-]{1,16}): Link down"),
    ("Link is Down", "link-down", r"(?P<subject>[\w.-]{1,16}): (?:NIC )?Link is Down"),
    # Linux: net/sched/sch_generic.c (dev_watchdog, until 6.5 and since), drivers/net/ethernet/mellanox/mlx5/core/en_main.c
    ("NETDEV WATCHDOG: ", "tx-watchdog", r"NETDEV WATCHDOG: (?P<subject>[\w.-]{1,16}) \([\w.-]{1,32}\): transmit queue \d+ timed out"),
    ("NETDEV WATCHDOG: ", "tx-watchdog", r"(?P<subject>[\w.-]{1,16}): NETDEV WATCHDOG: CPU: \d+: transmit queue \d+ timed out"),
    ("TX timeout detected", "tx-timeout", r"(?:mlx5_core|bnxt_en) \S+ (?P<subject>[\w.-]{1,16}): TX timeout detected"),
    # Linux: drivers/net/ethernet/intel/e1000e/netdev.c, ixgbe/ixgbe_main.c
    (" Unit Hang", "tx-timeout", r"(?P<subject>[\w.-]{1,16}): Detected (?:Hardware|Tx) Unit Hang"),
    # Linux: drivers/nvme/host/core.c, pci.c
    (Shared("will reset"), "nvme-reset", r"nvme (?P<subject>nvme\d+): controller is down; will reset"),
    ("reset controller", "nvme-reset", r"nvme (?P<subject>nvme\d+): (?:frozen state error detected|.*timeout), reset controller"),
    (Shared(" failure"), "nvme-dead", r"nvme (?P<subject>nvme\d+): (?:Removing after probe failure|Disabling device after reset failure)"),
    # Linux: block/blk-core.c, fs/buffer.c, fs/ext4/super.c, fs/xfs, fs/btrfs
    ("critical medium error", "disk-medium", r"critical medium error, dev (?P<subject>[\w-]+)"),
    ("I/O error", "disk-io", r"(?:^|[ :])I/O error, dev (?P<subject>[\w-]+), sector|Buffer I/O error on dev(?:ice)? (?P<other>[\w-]+)"),
    ("I/O Error", "disk-medium", r"(?P<subject>nvme\d+n\d+): .*I/O Error \(sct 0x2 "),
    ("EXT4-fs error", "fs-error", r"EXT4-fs error \(device (?P<subject>[^):]{1,60})"),
    (Shared("Remounting filesystem"), "fs-read-only", r"EXT4-fs \((?P<subject>[^)]{1,60})\): Remounting filesystem read-only"),
    ("orruption", "fs-error", r"XFS \((?P<subject>[^)]{1,60})\): .*[Cc]orruption"),
    ("Internal error", "fs-error", r"XFS \((?P<subject>[^)]{1,60})\): Internal error"),
    ("has been shut down due to", "fs-error", r"XFS \((?P<subject>[^)]{1,60})\): Filesystem has been shut down due to"),
    # Linux: drivers/md/raid1.c, raid10.c, raid5.c
    (": Disk failure on ", "disk-io", r"md/raid\w{0,4}:\w{1,32}: Disk failure on (?P<subject>[\w!-]{1,32}), disabling device"),
    (" out of ", "array-degraded", r"md/raid\w{0,4}:(?P<subject>md[\w-]{1,32}): (?:raid level \d{1,2} )?active with (\d{1,4}) out of (?!\2\b)\d{1,4} (?:mirrors|devices)"),
    ("hutting down filesystem", "fs-error", r"XFS \((?P<subject>[^)]{1,60})\): .*[Ss]hutting down filesystem"),
    (Shared("log I/O error"), "fs-error", r"XFS \((?P<subject>[^)]{1,60})\): log I/O error"),
    ("forced readonly", "fs-read-only", r"BTRFS \w+ \(device (?P<subject>[\w-]{1,60})[^)]*\): .*forced readonly"),
    (Shared("BTRFS warning"), "fs-error", r"BTRFS warning \(device (?P<subject>[\w-]{1,60})[^)]*\): (?:csum failed|checksum error at logical)"),
    (Shared("BTRFS"), "fs-error", r"BTRFS:? (?:critical|error) \(device (?P<subject>[\w-]{1,60})[^)]*\)(?::| in) .*(?:corrupt|parent transid verify failed|csum failed|IO failure|errno=-(?:5|30|117) )"),
    # fs/jbd2/journal.c and fs/ext4/inode.c; fs/xfs/xfs_error.c and xfs_buf.c; fs/bcachefs/error.c; openzfs/zfs: module/zfs/spa_misc.c; drivers/md/dm-thin.c
    ("JBD2: Error -", "fs-error", r"JBD2: Error -\d{1,3} detected when updating journal superblock for (?P<subject>[\w!-]{1,60}?)(?:-8)?\.?$"),
    ("Aborting journal on device", "fs-error", r"Aborting journal on device (?P<subject>[\w!-]{1,60}?)(?:-8)?\.?$"),
    ("Delayed block allocation failed", "fs-error", r"EXT4-fs \((?P<subject>[^)]{1,60})\): Delayed block allocation failed .* with error (?:5|30|117)\b"),
    ("Metadata CRC error", "fs-error", r"XFS \((?P<subject>[^)]{1,60})\): Metadata CRC error detected"),
    (Shared("metadata I/O error"), "fs-error", r"XFS \((?P<subject>[^)]{1,60})\): metadata I/O error"),
    ("emergency read only", "fs-read-only", r"bcachefs \((?P<subject>[^) ]{1,60})[^)]*\): .*emergency read only"),
    (Shared("has been suspended"), "fs-error", r"WARNING: Pool '(?P<subject>[^']{1,60})' has encountered an uncorrectable I/O failure and has been suspended"),
    (Shared("switching pool to"), "disk-io", r"device-mapper: thin: (?P<subject>\d{1,4}:\d{1,7}): switching pool to (?:out-of-data-space|read-only|fail)"),
    # Linux: net/sunrpc (clnt.c), Lustre: ptlrpc/import.c (ptlrpc_set_import_discon: LCONSOLE_ERROR_MSG(0x166, …) is printed as 166-1)
    ("nfs: server ", "server-lost", r"nfs: server (?P<subject>\S{1,200}) not responding"),
    ("nfs: server ", "server-back", r"nfs: server (?P<subject>\S{1,200}) OK"),
    ("Lustre: ", "server-lost", r"Connection to (?P<subject>\S{1,200}) \(at [^)]*\) was lost"),
    # Where the line names an address in the server's place, the client's own device tells which server it is
    ("Lustre: ", "server-back", r"(?P<subject>[\w.-]{1,100}?)-(?:osc|mdc)-[\w-]{1,40}: Connection restored to (?:\S{1,200}@\w{1,20})(?: |$)"),
    ("Lustre: ", "server-back", r"Connection restored to (?P<subject>\S{1,200}) "),
    ("LustreError: ", "server-lost", r"LustreError: .{0,80}: Connection to (?P<subject>\S{1,200}) \(at [^)]*\) was lost"),
    # Lustre: ptlrpc/import.c (167-0), osc/osc_request.c (132-0, 133-1, 168-f), libcfs/debug.c (lbug_with_loc)
    ("LustreError: ", "fs-evicted", r"LustreError: .{0,120}: This client was evicted by (?P<subject>[\w.-]{1,100})"),
    ("LustreError: ", "fs-error", r"LustreError: .{0,20}: (?P<subject>[\w.-]{1,100}?)(?:-osc-[\w-]+)?: BAD (?:READ|WRITE) CHECKSUM(?!.*likely false positive)"),  # of a page that a program changed meanwhile (mmap)
    ("LustreError: ", "fs-error", r"(?P<subject>Lustre)Error: .{0,160}\) LBUG"),
    # Linux: net/ceph/mon_client.c, osdmap.c (osdmap_info of newer kernels puts the cluster's id and the epoch in brackets), fs/ceph/mds_client.c (from 6.9 with the cluster's id in brackets), caps
    (Shared("ceph: "), "server-lost", r"libceph: (?P<subject>mon)\d+ .*session lost, hunting for new mon"),
    (Shared("ceph: "), "server-back", r"libceph: (?P<subject>mon)\d+ .*session established"),
    (Shared(": osd"), "server-lost", r"libceph(?: \([0-9a-f-]{36} e\d{1,10}\))?: (?P<subject>osd\d+) down"),
    (Shared(": osd"), "server-back", r"libceph(?: \([0-9a-f-]{36} e\d{1,10}\))?: (?P<subject>osd\d+) up"),
    (Shared("ceph: "), "server-lost", r"ceph: (?:\[[^\]]{1,80}\]: )?(?P<subject>mds\d+) (?:hung|caps stale)"),
    (Shared("ceph: "), "server-back", r"ceph: (?:\[[^\]]{1,80}\]: )?(?P<subject>mds\d+) (?:came back|caps renewed|recovery completed|reconnect success)"),
    (Shared("ceph: "), "fs-evicted", r"ceph: (?:\[[^\]]{1,80}\]: )?(?P<subject>mds\d+) (?:reconnect denied|rejected session|session blocklisted)"),
    # Linux: arch/x86/kernel/cpu/mce, drivers/edac/edac_mc.c, mm/memory-failure.c
    ("Machine Check", "machine-check", r"(?:CPU (?P<subject>\d+): )?Machine Check(?: Exception)?: [0-9a-f]+ Bank (?P<code>\d+)"),
    (Shared(" CE "), "memory-corrected", r"EDAC (?P<subject>MC\d+): (?P<code>\d{1,9}) CE .*? on (?P<who>\S{1,60})"),
    (Shared(" UE "), "memory-uncorrected", r"EDAC (?P<subject>MC\d+): (?P<code>\d{1,9}) UE .*? on (?P<who>\S{1,60})"),
    # drivers/firmware/efi/cper.c, of a firmware that looks first (APEI GHES): 3 is of several bits, 14 what a scrubber could not correct
    (Shared("error_type: "), "memory-uncorrected", r"\[Hardware Error\]: +error_type: (?:3, multi-bit ECC|14, scrub uncorrected error)"),
    ("Memory failure: 0x", "memory-uncorrected", r"Memory failure: 0x[0-9a-f]+: (?:Sending SIGBUS|recovery action|[\w ]*hardware memory corruption)"),
    # Linux: kernel/watchdog.c, hung_task.c, rcu/tree_stall.h
    ("soft lockup", "lockup", r"soft lockup - CPU#\d+ stuck for (?P<code>\d{1,6})s! \[(?P<who>[^\]]{1,40}):"),
    (Shared("workqueue lockup"), "lockup", r"BUG: workqueue lockup - pool .{0,60} stuck for (?P<code>\d{1,6})s!"),
    ("hard LOCKUP", "lockup", r"(?:Watchdog detected )?hard LOCKUP on cpu"),
    ("blocked for more than", "hung-task", r"INFO: task (?P<who>\S{1,40}):\d+ blocked for more than (?P<code>\d{1,6}) seconds"),
    (Shared("stall"), "lockup", r"rcu: INFO: \w+ (?:self-)?detected (?:expedited )?stall"),
    ("above threshold, cpu clock", "cpu-hot", r"CPU(?P<who>\d+): (?P<subject>Core|Package) temperature(?:/speed)?(?: is)? above threshold, cpu clock(?: is)? throttled(?: \(total events = (?P<code>\d{1,12})\))?"),
    # Linux: arch/x86/mm/fault.c, traps.c
    (Shared(": segfault at "), "crash", rf"(?P<subject>[^\s\[]{{1,40}})\[\d+\]: segfault at .* in (?P<who>{_LIBRARIES})"),
    (Shared("general protection"), "crash", rf"(?P<subject>[^\s\[]{{1,40}})\[\d+\] general protection.* in (?P<who>{_LIBRARIES})"),
    (Shared("] trap "), "crash", rf"traps: (?P<subject>[^\s\[]{{1,40}})\[\d+\] trap [a-z0-9 ]{{2,30}} ip:[0-9a-f]+ .* in (?P<who>{_LIBRARIES})"),
    ("Linux version ", "boot", r"Linux version \d"),
    # Linux: arch/x86/kernel/cpu/hypervisor.c; kernel/time/clocksource.c, kernel/power/suspend.c: time passed in which nothing ran
    (Shared("Hypervisor detected"), "hypervisor", r"Hypervisor detected: (?P<who>\w.{0,30})"),
    # drivers/iommu/iommu.c (iommu_subsys_init): what devices get that their driver asks nothing else for
    ("Default domain type: ", "iommu-default", r"iommu: Default domain type: (?P<who>Translated|Passthrough)"),
    (Shared("clocksource: "), "time-jump", r"clocksource: (?:Long readout interval|timekeeping watchdog on CPU\d+: Marking clocksource)"),
    (Shared("PM: suspend entry"), "suspended", r"PM: suspend entry \((?:deep|s2idle|shallow)\)"),
    (Shared("PM: suspend exit"), "time-jump", r"PM: suspend exit"),
)  # fmt: skip
