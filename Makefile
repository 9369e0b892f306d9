# Common commands. `make` without arguments lists them.
#
# scripts/install-*.sh install missing programs with apt-get; they print the list before they begin, and
# start no servers.

# The build to install and package: release, or debug in order to test the scripts.
PROFILE ?= release
BINARY ?= $(or $(CARGO_TARGET_DIR),target)/$(PROFILE)/tacit

.DEFAULT_GOAL := help
.PHONY: help demo check test build install uninstall package test-package test-guest static test-links-guest bench transparency lint

help: ## Print this list.
	@echo "tacit: TLS by policy for programs that cannot be changed"
	@echo
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1@\2/p' $(firstword $(MAKEFILE_LIST)) | \
		awk -F@ '{ printf "%-25s%s\n", $$1, $$2 }'
	@echo
	@echo "To build and install the program: make build && sudo make install (docs/install.md)"

demo: ## Demonstrate tacit with curl, openssl and a tap on the network; takes about a minute once built.
	@./demo/demo.sh

check: ## Check the format, run clippy and the tests that need no other programs; installs nothing.
	@./scripts/check.sh

test: ## Run everything that must pass before a merge; installs the programs that the tests need.
	@./scripts/install-deps.sh
	cargo xtask ci

build: ## Build the program for `make install` and `make package`.
	@./scripts/rust-version.sh
	cargo build --locked -p tacit $(if $(filter release,$(PROFILE)),--release)

install: ## Install program, manual, completions and units below PREFIX=/usr/local (DESTDIR= for packages).
	@[ -x $(BINARY) ] || $(MAKE) build
	@BINARY=$(BINARY) ./scripts/install.sh install

uninstall: ## Remove the files of `make install`; keeps policy, logs and user.
	@BINARY=$(BINARY) ./scripts/install.sh uninstall

package: build ## Build target/package/*.deb and *.tar.gz.
	@BINARY=$(BINARY) ./scripts/package.sh

test-package: build ## Install, upgrade and remove the package in a minimal Debian; needs root.
	@BINARY=$(BINARY) ./scripts/test-package.sh

test-guest: build ## Test the units under systemd in an emulated Debian; installs QEMU, needs root.
	./scripts/install-deps.sh guest
	@BINARY=$(BINARY) ./scripts/test-guest.sh

static: ## Build the program without libraries, as the only file of a guest: target/static/tacit.
	@./scripts/rust-version.sh
	./scripts/build-static.sh

test-links-guest: build static ## Test a link in an emulated guest without a network; installs QEMU.
	./scripts/install-deps.sh links-guest
	@BINARY=$(BINARY) ./scripts/test-links-guest.sh

bench: ## Compare CPU time and rate with other proxies and TLS libraries; QUICK=1 takes five minutes.
	./scripts/install-bench.sh
	cargo xtask bench $(if $(QUICK),--quick)

transparency: ## Run test suites of other projects with and without tacit; SUITE=NAME selects one.
	./scripts/install-deps.sh transparency
	cargo build --locked --release -p tacit
	/usr/bin/python3 -B scripts/transparency $(SUITE)

lint: ## Check the format and run clippy, as a quick check before a commit.
	cargo fmt --all -- --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
