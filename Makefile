# A thin front: set up, configure, build, run. Everything else is CMake (see CMakePresets.json).

BUILD := build/release
JOBS  ?= $(shell nproc 2>/dev/null || echo 2)

# Compiling kernels for every GPU takes long: here only for those in this machine, or for one where there is none.
HAS_GPU := $(shell nvidia-smi -L >/dev/null 2>&1 && echo yes)
ARCHS   ?= $(if $(HAS_GPU),native,90)
TESTS   := ON
CUDA    := AUTO

.PHONY: build demo test bench setup clean

build: setup
	@mkdir -p $(BUILD)
	@cmake --preset release -DGTRAIN_CUDA=$(CUDA) -DGTRAIN_CUDA_ARCHITECTURES="$(ARCHS)" -DGTRAIN_BUILD_TESTS=$(TESTS) \
	    -DGTRAIN_BUILD_BENCH=$(TESTS) $(CMAKE_ARGS) >$(BUILD)/configure.log 2>&1 || { cat $(BUILD)/configure.log; exit 1; }
	@grep -E '^-- (gtrain|  )|[Ww]arning' $(BUILD)/configure.log
	@cmake --build $(BUILD) -j $(JOBS)

# Trains a small convolutional network on Fashion-MNIST. Needs no tests, and without a GPU no kernels for it.
demo: TESTS := OFF
demo: CUDA := $(if $(HAS_GPU),AUTO,OFF)
demo: build
	$(BUILD)/examples/cnn $(DEMO_ARGS)

test: build
	@$(if $(HAS_GPU),,echo "No GPU answers (nvidia-smi -L): the cases that need one, labelled cuda, are left out.")
	ctest --test-dir $(BUILD) --output-on-failure --no-tests=error -j $(JOBS) $(if $(HAS_GPU),,-LE '^cuda$$')

# A training step beside PyTorch's, if python3 has it, and what an op call costs.
bench: build
	python3 bench/compare.py $(if $(HAS_GPU),cuda,cpu) --build $(BUILD)
	$(BUILD)/bench/host_cost

# Installs what is missing, once.
setup:
	@sh scripts/setup.sh

clean:
	rm -rf build
