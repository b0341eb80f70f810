//! The Grafana dashboard, which is generated from the table of metrics and a list of panels.

mod catalog;
mod dashboard;
mod panels;
