# For hosts without internet, made on any machine: `make bundle`, `make bundle ARCH=aarch64`, `make wheelhouse`. Everything else: ./run
ARCH := $(shell uname -m)

.PHONY: bundle wheelhouse
bundle wheelhouse:
	./run $@ --arch $(ARCH)
