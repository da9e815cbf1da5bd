"""The stages, one subject a module: each proves one thing that training needs (their order: ``table.py`` beside this folder)."""
