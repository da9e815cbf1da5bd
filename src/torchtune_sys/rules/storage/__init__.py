"""What data and checkpoints lie on, from the path down to the disk."""

from __future__ import annotations

from torchtune_sys.model.rule import Rule
from torchtune_sys.rules.storage.devices import (
    checkpoints_on_volatile_storage,
    data_on_container_layer,
    data_on_network_filesystem,
    data_on_object_store,
    data_on_spinning_disk,
    data_on_usb_disk,
    data_on_windows_drive,
    filesystem_errors_recorded,
    md_array_degraded,
)
from torchtune_sys.rules.storage.space import RULES as SPACE_RULES
from torchtune_sys.rules.storage.temporary import RULES as TEMPORARY_RULES
from torchtune_sys.rules.storage.tuning import RULES as TUNING_RULES

RULES: tuple[Rule, ...] = (
    data_on_spinning_disk,
    data_on_usb_disk,
    data_on_object_store,
    data_on_network_filesystem,
    data_on_windows_drive,
    data_on_container_layer,
    checkpoints_on_volatile_storage,
    md_array_degraded,
    filesystem_errors_recorded,
    *SPACE_RULES,
    *TEMPORARY_RULES,
    *TUNING_RULES,
)
