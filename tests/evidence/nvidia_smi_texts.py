"""Texts of ``nvidia-smi -q`` made of parts, as XML and as plain text."""

from __future__ import annotations

from torchtune_sys.evidence.nvidia.smi import parse_nvidia_smi
from torchtune_sys.model.facts.gpu import Gpu
from torchtune_sys.model.values import Missing, Why


def gpus(text: str) -> tuple[Gpu, ...]:
    found = parse_nvidia_smi(text)
    assert found is not None and not isinstance(found.devices, Missing)
    return found.devices


def xml(*gpus: str, attached: int | None = None, head: str = "") -> str:
    body = "".join(gpus)
    return (
        '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">\n<nvidia_smi_log>'
        f"<driver_version>580.95.05</driver_version><cuda_version>13.0</cuda_version>{head}"
        f"<attached_gpus>{len(gpus) if attached is None else attached}</attached_gpus>{body}</nvidia_smi_log>\n"
    )


def gpu(body: str, bus: str = "1B", uuid: str = "") -> str:
    told = f"<uuid>{uuid}</uuid>" if uuid else ""
    return f'<gpu id="00000000:{bus}:00.0"><product_name>NVIDIA H100 80GB HBM3</product_name>{told}{body}</gpu>'


def text(body: str, bus: str = "1B", head: str = "") -> str:
    lines = "\n".join("    " + line for line in body.splitlines())
    return (
        "\n==============NVSMI LOG==============\n\nTimestamp    : Sat Nov 21 09:00:00 2026\nDriver Version   : 580.95.05\n"
        f"CUDA Version    : 13.0\n{head}\nAttached GPUs    : 1\nGPU 00000000:{bus}:00.0\n{lines}\n"
    )


def missing(fact: object) -> Why:
    assert isinstance(fact, Missing)
    return fact.why


BOARD = """<vbios_version>96.00.A5.00.01</vbios_version><gsp_firmware_version>580.95.05</gsp_firmware_version>
<gpu_virtualization_mode><virtualization_mode>Pass-Through</virtualization_mode></gpu_virtualization_mode>
<bar1_memory_usage><total>131072 MiB</total></bar1_memory_usage><pci><replay_counter>7</replay_counter></pci>
<temperature><gpu_temp>41 C</gpu_temp><gpu_temp_tlimit>46 C</gpu_temp_tlimit>
<gpu_temp_max_tlimit_threshold>-8 C</gpu_temp_max_tlimit_threshold><gpu_temp_slow_tlimit_threshold>-2 C</gpu_temp_slow_tlimit_threshold>
</temperature>
<fabric><state>Completed</state><status>Success</status><cliqueId>0</cliqueId>
<health><summary>Healthy</summary><bandwidth>Full</bandwidth><route_recovery_in_progress>False</route_recovery_in_progress>
<route_unhealthy>False</route_unhealthy><access_timeout_recovery>False</access_timeout_recovery>
<incorrect_configuration>None</incorrect_configuration></health></fabric>"""
ECC_SPLIT = """<ecc_errors><volatile><sram_correctable>5</sram_correctable><sram_uncorrectable_parity>1</sram_uncorrectable_parity>
<sram_uncorrectable_secded>1</sram_uncorrectable_secded><dram_correctable>0</dram_correctable><dram_uncorrectable>0</dram_uncorrectable>
</volatile><aggregate><sram_uncorrectable_parity>3</sram_uncorrectable_parity><sram_uncorrectable_secded>6</sram_uncorrectable_secded>
<dram_uncorrectable>0</dram_uncorrectable><sram_threshold_exceeded>Yes</sram_threshold_exceeded></aggregate>
<aggregate_uncorrectable_sram_sources><sram_l2>9</sram_l2></aggregate_uncorrectable_sram_sources>
<channel_repair_pending>No</channel_repair_pending><tpc_repair_pending>Yes</tpc_repair_pending></ecc_errors>"""
ECC_TEXT = """ECC Mode
    Current                               : Enabled
    Pending                               : Disabled
ECC Errors
    Volatile
        Single Bit
            Device Memory                 : 5
            Total                         : 5
        Double Bit
            Total                         : 2
    Aggregate
        Double Bit
            Total                         : 9"""


MIG = "".join(
    f"<mig_device><index>{n}</index><fb_memory_usage><total>9984 MiB</total></fb_memory_usage><ecc_error_count>"
    "<volatile_count><sram_uncorrectable>0</sram_uncorrectable></volatile_count></ecc_error_count></mig_device>"
    for n in range(7)
)
