//! The program as its users meet it: run, fed, and everything it says compared.

#![allow(clippy::unwrap_used, reason = "a panic here is the report")]

mod backup;
mod browser;
mod doctor_error;
mod doctor_table;
mod doctor_uri;
mod down;
mod drill;
mod fixture;
mod frame;
mod http;
mod live;
mod monitor;
mod named_hosts;
mod names;
mod operate;
mod page;
mod prometheus;
mod real_faults;
mod replay;
mod support;
mod tail;
mod terminal;
mod transfer;
mod what_if;
