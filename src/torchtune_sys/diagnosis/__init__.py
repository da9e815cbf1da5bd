"""Find the causes of a failed training run: lines as programs printed them, the messages they match, and the facts that decide."""
