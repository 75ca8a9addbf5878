//! All tables of rows, in one process: the programs are loaded once.

mod answers;
