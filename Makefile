# What one does with Lapse. Each target says in one line what it is for; the work is in scripts/.
.PHONY: help demo test check contrib crash bench prepare toolchain
.DEFAULT_GOAL := help
export SQLX_OFFLINE = true

help: ## this list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

demo: toolchain ## one run of the whole, on a private PostgreSQL and an in-process broker: orders are placed, paid, cancelled
	@bin=$$(scripts/postgres get) && LAPSE_PG_BIN=$$bin cargo run --bin lapse -- dev --once $(ARGS)

test: ## every test, on a real PostgreSQL and a real Kafka (ARGS: for cargo test)
	@scripts/test $(ARGS)

check: ## format, lints, docs, prepared queries, dependencies, architecture (ARGS: names of single checks)
	@scripts/check $(ARGS)

contrib: toolchain ## run what contrib/ shows to others: participants and producers in other languages, the outbox (ARGS: a part)
	@scripts/contrib $(ARGS)

crash: toolchain ## kill everything, again and again, then count what was lost (ORDERS=n SEED=n)
	@scripts/crash $(ARGS)

bench: toolchain ## measure, on a private PostgreSQL that syncs to disk (ARGS: --only CASE --seconds N --rate N)
	@scripts/postgres start --name bench --fsync on >/dev/null
	@url=$$(scripts/postgres url --name bench) && DATABASE_URL=$$url cargo run --release --quiet --bin lapse -- bench $(ARGS); \
	  code=$$?; scripts/postgres stop --name bench; exit $$code

prepare: toolchain ## write .sqlx anew after a query or a migration has changed
	@scripts/sqlx-prepare

toolchain:
	@scripts/toolchain
