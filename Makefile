# `make` lists the targets. Everything is built under target/; nothing is installed but Debian packages.

target := $(abspath $(or $(CARGO_TARGET_DIR),target))
export TAKO_BIN := $(target)/release/tako
export PATH := $(abspath target/tools/bin):$(PATH)

.PHONY: help build tools test lab demo bench experiments soak fuzz clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## build the tako program
	cargo build --release --bin tako

tools: ## install what tests and demo need, if anything is missing
	@scripts/install.sh

# One build, of the profile `tests`, serves the mounted tests and all others: they are too heavy for anything slower.
test: tools ## all checks and tests in bounded form
	cargo fmt --check
	cargo clippy --profile tests --workspace --all-targets -- -D warnings
	cargo run -q --profile tests -p xtask -- tidy
	cargo test --profile tests --workspace
	TAKO_TEST_TRANSPORT=classic cargo test --profile tests -p tako-fuse -p tako-cli --test mount --test remote --test posix --test lifecycle --test caches --test ends --test requests --test conformance --test programs

lab: ## tests in emulated guests with RDMA and persistent memory
	@scripts/install.sh lab
	scripts/lab.sh

demo: tools build ## a cluster and a mounted pool at real work, killed and verified
	scripts/demo.sh

bench: build ## every figure beside the raw limit of this machine, and programs beside tmpfs
	@scripts/install.sh bench
	$(TAKO_BIN) bench
	scripts/programs.sh

experiments: build ## as root: the experiments of published systems, beside GlusterFS, MooseFS and NFS, into docs/experiments
	@scripts/install.sh experiments
	@scripts/install.sh lab
	scripts/experiments/run.py

soak: tools build ## the tests of the lab, fsx and clusters with their bounds lifted, and real programs
	TAKO_SOAK=1 cargo test --profile tests -p tako-lab
	TAKO_SOAK=1 cargo test --profile tests -p tako-cli --test conformance fsx
	TAKO_SOAK=1 cargo test --profile tests -p tako-cli --test clustered --test several_mounts --test random_kills --test random_links
	scripts/soak.sh

fuzz: ## a minute of fuzzing for each parser of media and messages
	scripts/fuzz.sh

clean: ## remove all that was built
	cargo clean
	rm -rf target fuzz/target
