"""What nvidia-smi prints, in all of its forms."""
