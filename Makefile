# The commands of a working day. `make` alone lists them.
#
# Every command can be repeated. scripts/install-*.sh install with apt-get what is not there; they
# print what that is before they begin, and start no server.

# The build that is installed and packaged: release, or debug to try the scripts.
PROFILE ?= release
BINARY ?= $(or $(CARGO_TARGET_DIR),target)/$(PROFILE)/tacit

.DEFAULT_GOAL := help
.PHONY: help demo check test build install uninstall package test-package bench transparency lint

help: ## This list.
	@echo "tacit: TLS by policy for programs that cannot be changed"
	@echo
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1@\2/p' $(firstword $(MAKEFILE_LIST)) | \
		awk -F@ '{ printf "%-21s%s\n", $$1, $$2 }'
	@echo
	@echo "To build and install the program: make build && sudo make install (docs/install.md)"

demo: ## Two agents, curl, openssl and a tap on the wire, in about a minute once built.
	@./demo/demo.sh

check: ## Format, clippy, and the tests that need no other programs; installs nothing.
	@./scripts/check.sh

test: ## Everything that has to pass before a change is merged; installs what the tests need.
	@./scripts/install-deps.sh
	cargo xtask ci

build: ## The program, for `make install` and `make package`.
	@./scripts/rust-version.sh
	cargo build --locked -p tacit $(if $(filter release,$(PROFILE)),--release)

install: ## Program, manual, completions and units below PREFIX=/usr/local; DESTDIR= for packages.
	@[ -x $(BINARY) ] || $(MAKE) build
	@BINARY=$(BINARY) ./scripts/install.sh install

uninstall: ## Removes the files of `make install`; policy, logs and user stay.
	@BINARY=$(BINARY) ./scripts/install.sh uninstall

package: build ## Builds target/package/*.deb and *.tar.gz.
	@BINARY=$(BINARY) ./scripts/package.sh

test-package: build ## Installs, upgrades and removes the package in a minimal Debian; needs root.
	@BINARY=$(BINARY) ./scripts/test-package.sh

bench: ## CPU and rate beside other proxies and TLS in the program; QUICK=1 for five minutes.
	./scripts/install-bench.sh
	cargo xtask bench $(if $(QUICK),--quick)

transparency: ## Suites of others with and without tacit, every difference; SUITE=NAME for one.
	./scripts/install-deps.sh transparency
	cargo build --locked -p tacit
	/usr/bin/python3 -B scripts/transparency $(SUITE)

lint: ## Format and clippy only: the quick look before a commit.
	cargo fmt --all -- --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
