//! The Grafana dashboard: generated from the table of metrics and a list of panels, and run over a live Prometheus.

mod catalog;
mod dashboard;
mod live;
mod panels;
