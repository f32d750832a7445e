//! The driver API's symbol table, as data and as a build-time parser.
