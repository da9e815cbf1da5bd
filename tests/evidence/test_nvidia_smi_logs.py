"""What ``nvidia-smi -q`` says, as XML and as text, over its versions."""

from __future__ import annotations

import pytest
from nvidia_smi_texts import BOARD, ECC_SPLIT, ECC_TEXT, MIG, gpu, gpus, missing, text, xml

from torchtune_sys.model.values import Missing, Why


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
