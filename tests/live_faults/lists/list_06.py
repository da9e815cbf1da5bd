"""Faults of kinds that the first five lists lack, written down before ``check`` was run on any: priorities, throttling, pressure, device groups, the interpreter's start, settings that switch a speed-up off.

Every third row from the third on (``SEALED``) was kept shut until what the others asked for was mended.
"""

from __future__ import annotations

from live_faults.row import Fault

_LOG = "printf '6,1,100000,-;Linux version 6.8.0-45-generic\\n{}' | over /dev/kmsg"

ROWS = (
    Fault("scheduled-when-idle", "RUN='chrt -i 0'", "says:SCHED_IDLE|says:idle"),
    Fault("niced-19", "RUN='nice -n 19'", "says:nice"),
    Fault("group-of-idle-shares", "for g in /sys/fs/cgroup/cpu; do mkdir -p $g/tt-lab-$$; echo 1 > $g/tt-lab-$$/cpu.idle; echo $$ > $g/tt-lab-$$/cgroup.procs; done", "says:cpu.idle|says:idle", left="on a busy machine what is in such a group does not end in time; niced-19 and scheduled-when-idle try the same rule"),
    Fault("disk-throttled-to-1-mb", "for g in /sys/fs/cgroup/blkio; do mkdir -p $g/tt-lab-$$; echo \"$(cat /sys/block/vda/dev) 1048576\" > $g/tt-lab-$$/blkio.throttle.read_bps_device; echo $$ > $g/tt-lab-$$/cgroup.procs; done", "says:blkio|says:throttle", args="--data /usr", left="no rule reads the limits on input and output of a control group"),
    Fault("throttled-nine-of-ten-periods", "group cpu cpu.cfs_quota_us 150000; printf 'nr_periods 100000\\nnr_throttled 90000\\nthrottled_time 9000000000000\\n' | over /sys/fs/cgroup/cpu/tt-lab-$$/cpu.stat", "says:throttled", may="cpu-quota-ignored-by-torch"),
    Fault("memory-stalls", "printf 'some avg10=71.20 avg60=68.11 avg300=64.90 total=99111222333\\nfull avg10=60.20 avg60=58.11 avg300=54.90 total=88111222333\\n' | over /proc/pressure/memory", "says:pressure|says:stall", left="no rule reads the stall times of /proc/pressure: memory-available-low and swap-in-use say why"),
    Fault("killed-in-its-own-group", "group memory memory.limit_in_bytes 8G; printf 'oom_kill_disable 0\\nunder_oom 0\\noom_kill 12\\n' | over /sys/fs/cgroup/memory/tt-lab-$$/memory.oom_control", "says:12.*kill|says:kill.*12|oom-kills-since-boot", may="cgroup-memory-far-below-host", mistaken="on a host the kernel's own counter holds these kills, too; in a container the group's is judged"),
    Fault("first-to-be-killed", "echo 1000 > /proc/self/oom_score_adj", "says:oom_score_adj", left="no rule: a batch system or Kubernetes sets it on purpose for what may be killed first"),
    Fault("panics-when-out-of-memory", "echo 2 | over /proc/sys/vm/panic_on_oom", "says:panic_on_oom", left="no rule on vm.panic_on_oom: nothing about training makes it right or wrong"),
    Fault("memory-cut-at-boot", "edit /proc/cmdline 's/^/mem=4G /'", "says:mem=4G"),
    Fault("core-throttled-by-heat", "lay /sys; for c in 0 1; do t=/sys/devices/system/cpu/cpu$c/thermal_throttle; put $t/core_throttle_count 51234; put $t/core_throttle_total_time_ms 7200000; put $t/package_throttle_count 51234; put $t/package_throttle_total_time_ms 7200000; done; edit /proc/cpuinfo 's/ hypervisor//'", "cpu-thermal-throttle|says:throttle"),
    Fault("null-is-a-file", "lay /dev; rm /dev/null; echo x > /dev/null; chmod 644 /dev/null", "says:/dev/null", user=65534, left="no rule opens the devices that every program needs"),
    Fault("devices-denied-by-the-group", "cuda_torch; for g in /sys/fs/cgroup/devices; do mkdir -p $g/tt-lab-$$; echo 'c 195:* rwm' > $g/tt-lab-$$/devices.deny; echo $$ > $g/tt-lab-$$/cgroup.procs; done; stub 'nvmlInitWithFlags = !999'", "gpu-device-permission|says:cgroup|says:/dev/nvidia", base="gpu", may="driver-tools-fail"),
    Fault("temporary-name-too-long", "d=$W/$(printf 'a%.0s' $(seq 60))/$(printf 'b%.0s' $(seq 60)); mkdir -p $d; chmod -R 777 $W/aaa*; export TMPDIR=$d", "says:TMPDIR|says:108|says:long", args="--workers 4 --nproc-per-node 2"),
    Fault("home-of-nobody", "cuda_torch; export HOME=/nonexistent", "says:nonexistent|compile-cache-not-writable", base="gpu", user=65534, mistaken="no Triton in this environment, so nothing is kept at home"),
    Fault("hub-cache-read-only", "mkdir $W/c; mount -t tmpfs -o ro tmpfs $W/c; export HF_HOME=$W/c/hf TORCH_HOME=$W/c/torch", "says:HF_HOME|says:TORCH_HOME", left="no rule: a shared cache of models is often read-only on purpose"),
    Fault("names-from-dns-alone", "printf 'passwd: files\\nhosts: dns\\n' | over /etc/nsswitch.conf; : | over /etc/resolv.conf", "hostname-unresolvable|localhost-not-loopback|says:nsswitch", args="--nnodes 2", may="hostname-unresolvable localhost-not-loopback"),
    Fault("start-ends-in-sitecustomize", "lay $SITE; echo 'raise SystemExit(3)' > $SITE/sitecustomize.py", "interpreter-does-not-start|says:sitecustomize|refused:python"),
    Fault("typing-extensions-gone", "lay $SITE; rm -r $SITE/typing_extensions*", "says:typing.extensions", left="without --live torch is not imported, and its plain requirements are not read"),
    Fault("core-of-another-python", "lay $SITE; for f in $SITE/torch/_C.*.so; do mv $f $SITE/torch/_C.cpython-38-x86_64-linux-gnu.so; done", "says:_C|says:cpython-38|torch-import-fails", left="the tags of the wheel are right, and the files of torch are not weighed; --live imports it"),
    Fault("assertions-and-docstrings-off", "export PYTHONOPTIMIZE=2", "says:PYTHONOPTIMIZE", mistaken="torch 2.13 imports, trains and compiles without assertions and docstrings"),
    Fault("allocations-traced", "export PYTHONTRACEMALLOC=25", "says:PYTHONTRACEMALLOC"),
    Fault("heap-checked-by-a-tunable", "export GLIBC_TUNABLES=glibc.malloc.check=3:glibc.malloc.perturb=165", "memory-debugging-on|says:GLIBC_TUNABLES"),
    Fault("kernels-without-vectors", "export ATEN_CPU_CAPABILITY=default", "says:ATEN_CPU_CAPABILITY"),
    Fault("onednn-held-to-sse", "export ONEDNN_MAX_CPU_ISA=SSE41", "says:ONEDNN_MAX_CPU_ISA"),
    Fault("compile-switched-off", "export TORCHDYNAMO_DISABLE=1", "says:TORCHDYNAMO_DISABLE"),
    Fault("threads-not-a-number", "export OMP_NUM_THREADS=auto", "says:OMP_NUM_THREADS", args="--nproc-per-node 2", may="cpu-oversubscribed"),
    Fault("quota-of-the-user-used-up", "disk xfs 400M uquota; xfs_quota -x -c 'limit bhard=4m 65534' $W/m; setpriv --reuid 65534 --regid 65534 --clear-groups dd if=/dev/zero of=$W/m/x bs=1M count=8 2>/dev/null || true", "says:quota|checkpoints-not-writable|disk-full", args="--checkpoints $W/m", user=65534, may="disk-space-low", left="a kernel without quotas does not mount it"),
    Fault("no-read-ahead", "lay /sys; for d in vda; do rm -f /sys/block/$d/queue/read_ahead_kb; echo 0 > /sys/devices/virtual/bdi/$(cat /sys/block/$d/dev)/read_ahead_kb 2>/dev/null || true; put $(readlink -f /sys/block/$d)/queue/read_ahead_kb 0; done", "says:read.ahead", args="--data /usr"),
    Fault("errors-counted-by-ext4", "lay /sys; put /sys/fs/ext4/vda/errors_count 7; put /sys/fs/ext4/vda/first_error_time 1790000000; put /sys/fs/ext4/vda/last_error_time 1790001000", "says:ext4|says:errors_count", args="--data /usr"),
    Fault("pool-suspended-in-the-log", _LOG.format("4,900,5000000000,-;WARNING: Pool '\\''tank'\\'' has encountered an uncorrectable I/O failure and has been suspended.\\n".replace("'\\''", "\\047")), "disk-errors-logged|says:tank"),
    Fault("page-poisoned-in-the-log", _LOG.format("3,900,5000000000,-;Memory failure: 0x1a2b3c: Sending SIGBUS to python3:4711 due to hardware memory corruption\\n3,901,5000000100,-;Memory failure: 0x1a2b3c: recovery action for dirty LRU page: Recovered\\n"), "memory-uncorrected-logged|says:Memory.failure|says:memory"),
    Fault("memory-nearly-all-of-the-group", "group memory memory.limit_in_bytes 8G; echo 8500000000 | over /sys/fs/cgroup/memory/tt-lab-$$/memory.usage_in_bytes; sed 's/^total_inactive_file .*/total_inactive_file 1000/; s/^inactive_file .*/inactive_file 1000/; s/^total_rss .*/total_rss 8400000000/; s/^rss .*/rss 8400000000/' /sys/fs/cgroup/memory/tt-lab-$$/memory.stat | over /sys/fs/cgroup/memory/tt-lab-$$/memory.stat", "cgroup-memory-tight|says:cgroup|says:limit", may="cgroup-memory-far-below-host memory-available-low"),
    Fault("working-directory-deleted", "mkdir $W/gone; cd $W/gone; rmdir $W/gone", "says:working.directory|says:deleted"),
    Fault("healthy-root-of-a-user-namespace", "RUN='unshare -U -r'"),
    Fault("healthy-pid-namespace", "RUN='unshare -p -f --mount-proc'"),
    Fault("healthy-no-new-privileges", "RUN='setpriv --no-new-privs --bounding-set=-all --inh-caps=-all'"),
    Fault("healthy-ordinary-log", _LOG.format("4,900,5000000000,-;perf: interrupt took too long (2503 > 2500), lowering kernel.perf_event_max_sample_rate to 79750\\n4,901,5000000100,-;workqueue: blk_mq_run_work_fn hogged CPU for >10000us 4 times, consider switching to WQ_UNBOUND\\n6,902,5000000200,-;TCP: eth0: Driver has suspect GRO implementation, TCP performance may be compromised.\\n4,903,5000000300,-;hrtimer: interrupt took 31222 ns\\n6,904,5000000400,-;mce: CPU0: Thermal monitoring enabled (TM1)\\n4,905,5000000500,-;systemd-journald[301]: File /var/log/journal/system.journal corrupted or uncleanly shut down, renaming and replacing.\\n6,906,5000000600,-;EXT4-fs (vda): recovery complete\\n")),
    Fault("healthy-read-only-root", "mount --bind /tmp /tmp; mount -o remount,ro,bind /"),
    Fault("healthy-stack-without-limit", "ulimit -s unlimited; ulimit -n $(ulimit -Hn); ulimit -c unlimited"),
)  # fmt: skip

SEALED = tuple(row.name for row in ROWS[2::3])
