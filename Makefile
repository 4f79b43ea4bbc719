# The road into the project; `make help` lists it. The work is done by scripts/, which run only what is not done yet.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help setup build train test asan tsan bench loss-matrix plan-all clean

# More of the command line of the program that is run, for example: make train ARGS="--training.steps 20"
ARGS ?=

help: ## show this list
	@sed -n 's/^\([a-z-]*\):[^#]*## /\1\t/p' Makefile | while IFS=$$'\t' read -r name text; do printf '  make %-11s %s\n' "$$name" "$$text"; done

setup: ## install what is needed: system packages, .venv, PJRT plugins and headers
	@scripts/setup.sh

build: setup ## set up and build build/flambeau, the libraries and the tests
	@scripts/build.sh build

train: build ## set up, build and train the debug Llama on real text
	build/flambeau train configs/llama3/debug.toml $(ARGS)

test: build ## set up, build and run all tests
	@scripts/setup.sh jax
	@scripts/test.sh

asan: ## run the C++ tests with the address and undefined-behaviour sanitizers (in build-asan)
	@scripts/setup.sh jax
	@scripts/build.sh build-asan address,undefined
	@scripts/test.sh build-asan

tsan: ## run the C++ tests with the thread sanitizer (in build-tsan)
	@scripts/setup.sh jax
	@scripts/build.sh build-tsan thread
	@scripts/test.sh build-tsan

bench: ## compare a training step with PyTorch and JAX in the same run
	@scripts/setup.sh jax
	@scripts/build.sh build "" train_step_worker
	.venv/bin/python bench/train_step.py $(ARGS)

loss-matrix: build ## compare losses over meshes, loops, checkpoint policies and dtypes; writes docs/loss_identity.md
	.venv/bin/python tests/python/loss_identity.py $(ARGS)

plan-all: build ## plan every bundled configuration on the TPUs it is meant for; writes docs/plans.md
	.venv/bin/python scripts/plan_all.py $(ARGS)

clean: ## remove what was built; .venv and the downloads stay
	rm -rf build build-asan build-tsan python/flambeau/_C.*.so
