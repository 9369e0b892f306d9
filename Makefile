# The commands of a working day. `make` alone lists them.
#
# Everything is idempotent; scripts/install-*.sh install through apt only what is not there.

.DEFAULT_GOAL := help
.PHONY: help demo test bench transparency lint

help: ## This list.
	@echo "tacit: TLS by policy for programs that cannot be changed"
	@echo
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1@\2/p' $(firstword $(MAKEFILE_LIST)) | \
		awk -F@ '{ printf "%-21s%s\n", $$1, $$2 }'
	@echo
	@echo "The program itself: cargo build --release && target/release/tacit --help"

demo: ## Two agents, curl, openssl and a tap on the wire, in about a minute once built.
	@./demo/demo.sh

test: ## Everything that has to pass before a change is merged.
	./scripts/install-deps.sh
	cargo xtask ci

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
