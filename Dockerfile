# syntax=docker/dockerfile:1
FROM rust:1.95-bookworm AS build
WORKDIR /src
# What librdkafka is built with: TLS and zlib.
RUN apt-get update \
 && apt-get install -y --no-install-recommends libssl-dev zlib1g-dev pkg-config \
 && rm -rf /var/lib/apt/lists/*
COPY . .
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    cargo build --release --locked --bin postrider \
 && cp target/release/postrider /usr/local/bin/postrider

FROM debian:bookworm-slim
RUN apt-get update \
 && apt-get install -y --no-install-recommends ca-certificates libssl3 zlib1g \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --system --uid 10001 --no-create-home --shell /usr/sbin/nologin postrider
COPY --from=build /usr/local/bin/postrider /usr/local/bin/postrider
USER 10001:10001
EXPOSE 9464
# The process turns its loop. Whether events flow is for /ready: a broker that is down is no reason to restart us.
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s CMD ["bash", "-c", \
  "exec 3<>/dev/tcp/127.0.0.1/9464 && printf 'GET /live HTTP/1.0\\r\\n\\r\\n' >&3 && head -n 1 <&3 | grep -q ' 200 '"]
# SIGTERM drains within `shutdown_grace` (10 s); give the container longer than that.
ENTRYPOINT ["postrider"]
# A halted process stays up and answers; with `run --fail-fast` it exits with 3.
CMD ["run"]
