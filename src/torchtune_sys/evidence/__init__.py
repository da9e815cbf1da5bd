"""Pasted text (collect_env, nvidia-smi) as a snapshot whose other facts are Missing(NOT_RECORDED)."""
