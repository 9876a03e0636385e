//! The program as its users meet it: run, fed, and everything it says compared.

mod doctor_error;
mod frame;
mod replay;
mod support;
