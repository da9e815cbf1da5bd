"""What ``nvidia-smi -q`` says, as XML and as text, over its versions; parts of it, several of it, and the torn rest of it."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchtune_sys.evidence.nvidia_smi import parse_nvidia_smi
from torchtune_sys.formats.nvidia_smi.logs import parse_query, parse_xml
from torchtune_sys.model.facts.gpu import Gpu, GpuFacts, from_json
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


def test_the_board_in_xml() -> None:
    (found,) = gpus(xml(gpu(BOARD)))
    assert (found.vbios, found.gsp_firmware, found.virtualization) == ("96.00.A5.00.01", "580.95.05", "passthrough")
    assert (found.bar1_total_bytes, found.pcie_replays) == (131072 << 20, 7)
    assert (found.temperature_c, found.temperature_margin_c) == (41, 46)
    assert isinstance(found.temperature_slowdown_c, Missing)  # relative to the limit there, which is no temperature
    assert (found.fabric_state, found.fabric_status, found.fabric_clique, found.fabric_health) == ("completed", "success", 0, ())


@pytest.mark.parametrize(
    ("part", "words", "complaint"),
    [
        ("bandwidth", "Degraded", "degraded bandwidth"),
        ("route_unhealthy", "True", "route unhealthy"),
        ("route_recovery_in_progress", "True", "route recovery in progress"),
        ("access_timeout_recovery", "True", "access timeout recovery"),
    ],
)
def test_a_fabric_that_is_not_healthy(part: str, words: str, complaint: str) -> None:
    sound = "False" if words == "True" else "Full"
    (found,) = gpus(xml(gpu(BOARD.replace(f"<{part}>{sound}<", f"<{part}>{words}<"))))
    assert found.fabric_health == (complaint,)
    label = part.replace("_", " ").title()
    (found,) = gpus(text(f"Fabric\n    State   : Completed\n    Health\n        {label}   : {words}"))
    assert found.fabric_health == (complaint,)


@pytest.mark.parametrize(
    ("words", "state"), [("In Progress", "in-progress"), ("Not Started", "not-started"), ("Completed", "completed")]
)
def test_states_of_the_fabric(words: str, state: str) -> None:
    for found in (gpus(xml(gpu(f"<fabric><state>{words}</state></fabric>"))), gpus(text(f"Fabric\n    State  : {words}"))):
        assert found[0].fabric_state == state


ECC_OLD = """<ecc_errors><volatile>
<single_bit><device_memory>4</device_memory><l2_cache>1</l2_cache><total>5</total></single_bit>
<double_bit><device_memory>2</device_memory><total>2</total></double_bit></volatile>
<aggregate><double_bit><device_memory>9</device_memory><total>9</total></double_bit></aggregate></ecc_errors>"""
ECC_ONE_ROW = """<ecc_errors><volatile><sram_correctable>1</sram_correctable><sram_uncorrectable>2</sram_uncorrectable>
<dram_correctable>4</dram_correctable><dram_uncorrectable>0</dram_uncorrectable></volatile>
<aggregate><sram_uncorrectable>4</sram_uncorrectable><dram_uncorrectable>5</dram_uncorrectable></aggregate></ecc_errors>"""
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


@pytest.mark.parametrize("log", [xml(gpu(ECC_OLD)), xml(gpu(ECC_ONE_ROW)), xml(gpu(ECC_SPLIT)), text(ECC_TEXT)])
def test_memory_errors_over_the_versions(log: str) -> None:
    (found,) = gpus(log)
    assert (found.ecc_corrected_volatile, found.ecc_uncorrected_volatile, found.ecc_uncorrected_aggregate) == (5, 2, 9)


def test_parts_of_newer_memory_errors() -> None:
    (found,) = gpus(xml(gpu(ECC_SPLIT)))
    assert found.sram_threshold_exceeded is True and found.repair_pending is True
    (found,) = gpus(xml(gpu(ECC_ONE_ROW)))
    assert missing(found.sram_threshold_exceeded) is missing(found.repair_pending) is Why.NOT_RECORDED
    (found,) = gpus(text(ECC_TEXT))
    assert (found.ecc, found.ecc_pending) == (True, False)


def test_a_part_that_could_not_be_read_is_not_taken_for_none() -> None:
    body = "<ecc_errors><volatile><sram_uncorrectable>0</sram_uncorrectable><dram_uncorrectable>{}</dram_uncorrectable></volatile></ecc_errors>"
    assert missing(gpus(xml(gpu(body.format("ERR!"))))[0].ecc_uncorrected_volatile) is Why.FAILED
    assert gpus(xml(gpu(body.format("N/A"))))[0].ecc_uncorrected_volatile == 0


def test_rows_and_pages() -> None:
    rows = """<retired_pages><multiple_single_bit_retirement><retired_count>3</retired_count></multiple_single_bit_retirement>
<double_bit_retirement><retired_count>60</retired_count></double_bit_retirement><pending_retirement>Yes</pending_retirement></retired_pages>
<remapped_rows><remapped_row_corr>1</remapped_row_corr><remapped_row_unc>8</remapped_row_unc>
<remapped_row_pending>Yes</remapped_row_pending><remapped_row_failure>No</remapped_row_failure><row_remapper_histogram>
<row_remapper_histogram_max>638 bank(s)</row_remapper_histogram_max><row_remapper_histogram_high>1 bank(s)</row_remapper_histogram_high>
<row_remapper_histogram_partial>0 bank(s)</row_remapper_histogram_partial><row_remapper_histogram_low>0 bank(s)</row_remapper_histogram_low>
<row_remapper_histogram_none>1 bank(s)</row_remapper_histogram_none></row_remapper_histogram></remapped_rows>"""
    plain = """Retired Pages
    Single Bit ECC             : 3
    Double Bit ECC             : 60
    Pending Page Blacklist     : Yes
Remapped Rows
    Correctable Error          : 1
    Uncorrectable Error        : 8
    Pending                    : Yes
    Remapping Failure Occurred : No
    Bank Remap Availability Histogram
        Max                    : 638 bank(s)
        High                   : 1 bank(s)
        Partial                : 0 bank(s)
        Low                    : 0 bank(s)
        None                   : 1 bank(s)"""
    for (found,) in (gpus(xml(gpu(rows))), gpus(text(plain))):
        assert (found.rows_remapped_correctable, found.rows_remapped_uncorrectable) == (1, 8)
        assert (found.rows_remap_pending, found.rows_remap_failed, found.row_banks) == (True, False, (638, 1, 0, 0, 1))
        assert (found.pages_retired_single_bit, found.pages_retired_double_bit, found.pages_retire_pending) == (3, 60, True)


@pytest.mark.parametrize("form", [xml(gpu("<remapped_rows>N/A</remapped_rows>")), text("Remapped Rows     : N/A")])
def test_gpus_that_do_not_remap(form: str) -> None:
    (found,) = gpus(form)
    for fact in (found.rows_remap_pending, found.rows_remap_failed, found.rows_remapped_correctable, found.row_banks):
        assert missing(fact) is Why.NOT_SUPPORTED


@pytest.mark.parametrize(
    ("body", "action"),
    [
        ("<gpu_recovery_action>None</gpu_recovery_action>", "none"),
        ("<gpu_recovery_action>Reset</gpu_recovery_action>", "gpu-reset"),
        ("<gpu_recovery_action>Drain P2P</gpu_recovery_action>", "drain-p2p"),
        ("<gpu_recovery_action>Drain and Reset</gpu_recovery_action>", "drain-and-reset"),
        ("<gpu_reset_status><reset_required>Yes</reset_required></gpu_reset_status>", "gpu-reset"),
        (
            "<gpu_reset_status><reset_required>No</reset_required>"
            "<drain_and_reset_recommended>Yes</drain_and_reset_recommended></gpu_reset_status>",
            "drain-and-reset",
        ),
        (
            "<gpu_reset_status><reset_required>No</reset_required>"
            "<drain_and_reset_recommended>N/A</drain_and_reset_recommended></gpu_reset_status>",
            "none",
        ),
    ],
)
def test_what_the_driver_asks_for(body: str, action: str) -> None:
    assert gpus(xml(gpu(body)))[0].recovery_action == action


def test_a_recovery_action_that_is_not_known_is_no_finding() -> None:
    assert missing(gpus(xml(gpu("<gpu_recovery_action>Polish</gpu_recovery_action>")))[0].recovery_action) is Why.UNPARSED


@pytest.mark.parametrize("name", ["event", "throttle"])
def test_clock_reasons_under_both_names(name: str) -> None:
    tag = f"clocks_{name}_reason"
    body = (
        f"<{tag}s><{tag}_gpu_idle>Not Active</{tag}_gpu_idle><{tag}_sw_power_cap>Active</{tag}_sw_power_cap>"
        f"<{tag}_hw_thermal_slowdown>Active</{tag}_hw_thermal_slowdown></{tag}s>"
        f"<{tag}s_counters><{tag}s_counters_hw_power_brake>9 us</{tag}s_counters_hw_power_brake></{tag}s_counters>"
    )
    assert gpus(xml(gpu(body)))[0].clock_event_reasons == 0x44
    plain = f"Clocks {name.title()} Reasons\n    Idle : Not Active\n    SW Power Cap : Active\n    HW Slowdown : Active\n        HW Thermal Slowdown : Active"
    assert gpus(text(plain))[0].clock_event_reasons == 0x4C


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("N/A", Why.NOT_SUPPORTED),
        ("[Not Supported]", Why.NOT_SUPPORTED),
        ("Requested functionality has been deprecated", Why.NOT_SUPPORTED),
        ("ERR!", Why.FAILED),
        ("Unknown Error", Why.FAILED),
        ("Insufficient Permissions", Why.DENIED),
        ("[GPU requires reset]", Why.FAILED),
        ("[GPU is lost]", Why.FAILED),
        ("GPU is lost", Why.FAILED),
    ],
)
def test_words_for_no_value(words: str, why: Why) -> None:
    for (found,) in (
        gpus(xml(gpu(f"<ecc_mode><current_ecc>{words}</current_ecc></ecc_mode>"))),
        gpus(text(f"ECC Mode\n    Current : {words}")),
    ):
        assert missing(found.ecc) is why
        assert found.lost == ("GPU" in words)


MIG = "".join(
    f"<mig_device><index>{n}</index><fb_memory_usage><total>9984 MiB</total></fb_memory_usage><ecc_error_count>"
    "<volatile_count><sram_uncorrectable>0</sram_uncorrectable></volatile_count></ecc_error_count></mig_device>"
    for n in range(7)
)


def test_mig_devices_are_counted() -> None:
    on = "<mig_mode><current_mig>Enabled</current_mig></mig_mode>"
    assert gpus(xml(gpu(f"{on}<mig_devices>{MIG}</mig_devices>")))[0].mig_instances == 7
    assert gpus(xml(gpu(f"{on}<mig_devices>None</mig_devices>")))[0].mig_instances == 0
    device = "MIG Device\n    Index : {}\n    FB Memory Usage\n        Total : 9984 MiB\n"
    (found,) = gpus(
        text("MIG Mode\n    Current : Enabled\n" + device.format(0) + device.format(1) + "FB Memory Usage\n    Total : 81559 MiB")
    )
    assert (found.mig, found.mig_instances, found.memory_total_bytes) == (True, 2, 81559 << 20)


def test_processes() -> None:
    listed = """<processes><process_info><gpu_instance_id>N/A</gpu_instance_id><pid>4242</pid><type>C</type>
<process_name>python -c 'a &lt; b && c'</process_name><used_memory>1024 MiB</used_memory></process_info>
<process_info><pid>77</pid><type>G</type><process_name>Xorg</process_name><used_memory>9 MiB</used_memory></process_info></processes>"""
    (found,) = gpus(xml(gpu(listed)))
    assert not isinstance(found.processes, Missing)
    assert [(item.pid, item.name, item.used_bytes) for item in found.processes] == [(4242, "python -c 'a < b && c'", 1024 << 20)]
    assert gpus(xml(gpu("<processes>\n</processes>")))[0].processes == gpus(text("Processes    : None"))[0].processes == ()
    assert missing(gpus(xml(gpu("<processes>N/A</processes>")))[0].processes) is Why.NOT_SUPPORTED
    assert missing(gpus(xml(gpu("")))[0].processes) is Why.NOT_RECORDED


def test_parts_of_a_query_are_put_together() -> None:
    parts = (
        text("ECC Mode\n    Current : Enabled")
        + text("Temperature\n    GPU Current Temp : 41 C")
        + text("Compute Mode : Default", bus="43")
    )
    first, second = gpus(parts)
    assert (first.ecc, first.temperature_c, first.index) == (True, 41, 0)
    assert (second.pci_address, second.compute_mode, second.index) == ("0000:43:00.0", "default", 1)


@pytest.mark.parametrize("form", ["xml", "text"])
def test_the_same_again_later_counts(form: str) -> None:
    if form == "xml":
        logs = [xml(gpu(f"<temperature><gpu_temp>{t} C</gpu_temp></temperature>")) for t in (41, 86)]
    else:
        logs = [text(f"Temperature\n    GPU Current Temp : {t} C") for t in (41, 86)]
    (found,) = gpus("idle:\n" + logs[0] + "under load:\n" + logs[1])
    assert found.temperature_c == 86


def test_another_hosts_log_is_left_out() -> None:
    here = xml(gpu("<compute_mode>Default</compute_mode>", uuid="GPU-1"))
    there = xml(gpu("<compute_mode>Prohibited</compute_mode>", uuid="GPU-2"), gpu("", bus="43", uuid="GPU-3"))
    (found,) = gpus(here + there)
    assert found.compute_mode == "default"


def test_one_gpu_of_several_keeps_its_number() -> None:
    (found,) = gpus(xml(gpu("<minor_number>3</minor_number>", bus="61"), attached=8))
    assert found.index == 3


WHOLE = xml(
    *(
        gpu("<ecc_mode><current_ecc>Enabled</current_ecc></ecc_mode><compute_mode>Default</compute_mode>", bus=b)
        for b in ("1B", "43", "52")
    )
)


def test_a_log_that_is_cut_off_keeps_what_was_whole() -> None:
    cut = WHOLE[: WHOLE.index("<compute_mode>", WHOLE.index("43:00.0"))]
    first, second = gpus(cut)
    assert first.compute_mode == "default" and missing(first.vbios) is Why.NOT_RECORDED
    assert second.ecc is True and missing(second.compute_mode) is Why.UNPARSED


def test_a_log_that_is_cut_off_between_two_gpus() -> None:
    cut = WHOLE[: WHOLE.index("</gpu>", WHOLE.index("43:00.0")) + 6]
    _, second, third = gpus(cut)
    assert second.compute_mode == "default"
    assert missing(third.name) is missing(third.ecc) is Why.UNPARSED


@pytest.mark.parametrize("cut", range(0, 400, 7))
def test_a_cut_anywhere_is_survived(cut: int) -> None:
    found = parse_xml(WHOLE[: len(WHOLE) - cut])
    assert isinstance(from_json(found, "x"), GpuFacts)


@pytest.mark.parametrize("prefix", ["> ", "    ", "worker-1  | "])
def test_text_in_a_quotation(prefix: str) -> None:
    log = text("Product Name : NVIDIA L4\nECC Mode\n    Current : Enabled\n    Pending : Enabled")
    (found,) = gpus("\n".join(prefix + line for line in log.splitlines()))
    assert (found.name, found.ecc) == ("NVIDIA L4", True)


@pytest.mark.parametrize("prefix", ["", "> "])
def test_a_log_whose_head_was_not_copied(prefix: str) -> None:
    log = (
        text("Product Name : NVIDIA L4\nECC Mode\n    Current : Enabled")
        + text("Product Name : NVIDIA L4", bus="43").partition("\nGPU ")[2]
    )
    lines = log[log.index("\nGPU ") + 1 :].splitlines()
    lines = [line if line[:1] == " " else "GPU " + line.removeprefix("GPU ") for line in lines if line]
    first, second = gpus("\n".join(prefix + line for line in lines))
    assert (first.ecc, first.pci_address, second.pci_address) == (True, "0000:1b:00.0", "0000:43:00.0")


def test_virtual_gpus_of_a_hypervisor_are_no_gpus() -> None:
    assert (
        parse_nvidia_smi(
            "GPU 00000001:C8:00.0\n    Active vGPUs : 1\n    vGPU ID : 3251637554\n        FB Memory Usage\n            Total : 3072 MiB\n"
        )
        is None
    )


def test_other_output_behind_a_log_is_not_taken_for_it() -> None:
    log = text("ECC Mode\n    Current : Enabled") + "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)\n\t Link 0: 26.562 GB/s\n"
    (found,) = gpus(log)
    assert found.pci_address == "0000:1b:00.0"


BOMB = '<!DOCTYPE nvidia_smi_log [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;"><!ENTITY c SYSTEM "file:///etc/passwd">]>'


def test_entities_are_never_expanded() -> None:
    (found,) = gpus(
        BOMB + '<nvidia_smi_log><gpu id="00000000:01:00.0"><product_name>&b;&c;</product_name></gpu></nvidia_smi_log>'
    )
    assert found.name == "&b;&c;"
    assert parse_xml("<nvidia_smi_log>" + BOMB + '<gpu id="1">&b;</gpu></nvidia_smi_log>') is None


@pytest.mark.parametrize(
    "hostile",
    [
        "<nvidia_smi_log>" + "<gpu>" * 100_000,
        "<nvidia_smi_log><gpu id='x'>" + "<a>" * 100_000,
        "<nvidia_smi_log>" * 50_000,
        "<nvidia_smi_log><gpu" + " id='1'" * 100_000,
        "<nvidia_smi_log>" + "</gpu>" * 100_000 + "<gpu id='1'><fan_speed>" + "9" * 100_000,
        "NVSMI LOG==\n" * 50_000,
        "====NVSMI LOG====\nGPU 1:2:3.4\n" + "".join(" " * n + "a : b\n" for n in range(1000)),
        "====NVSMI LOG====\n" + "GPU 1:2:3.4\n    Bus : 1\n" * 20_000,
        "=" * 100_000 + "NVSMI LOG=",
    ],
)
def test_hostile_logs_cost_little(hostile: str) -> None:
    started = time.process_time()
    found = parse_nvidia_smi(hostile)
    assert found is None or isinstance(found, GpuFacts)
    assert time.process_time() - started < 4


PIECES = [
    *xml(gpu(BOARD + ECC_SPLIT + f"<mig_devices>{MIG}</mig_devices>")).replace(">", ">\0").split("\0"),
    "<gpu>",
    "ERR!",
    "&#x110000;",
    "9" * 30,
]
LINES = [
    *text(ECC_TEXT).splitlines(),
    "GPU 00000000:ZZ:00.0",
    "    Processes : N/A",
    "        Process ID : -1",
    "GPU 1:2:3.4",
    "  : ",
    "    MIG Device",
]


@settings(max_examples=100)
@given(st.lists(st.sampled_from(PIECES), max_size=60), st.lists(st.sampled_from(LINES), max_size=30))
def test_shuffled_logs_are_survived(pieces: list[str], lines: list[str]) -> None:
    for found in (parse_xml("<nvidia_smi_log>" + "".join(pieces)), parse_query("====NVSMI LOG====\n" + "\n".join(lines))):
        assert found is None or isinstance(from_json(found, "x"), GpuFacts)


@given(st.text(max_size=500))
def test_any_text_behind_the_markers_is_survived(rest: str) -> None:
    for found in (parse_xml("<nvidia_smi_log><gpu id='1'>" + rest), parse_query("====NVSMI LOG====\nGPU 1:2:3.4\n" + rest)):
        assert found is None or isinstance(from_json(found, "x"), GpuFacts)
