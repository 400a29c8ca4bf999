//! The command line. Each command has a file with its arguments, its work and its output.

mod address;
mod answer;
mod app;
mod backup_info;
mod contexts;
mod exit;
mod failure;
mod help;
mod local;
mod progress;
mod remote;
mod table;
mod text;
mod time;
mod yaml;

pub use app::main;
