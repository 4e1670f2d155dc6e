//! Tests of what is written: the order of modules, citations in documents, and the words that people read.

mod book;
mod console;
mod facts;
mod layers;
mod pages;
mod stricter;
mod words;
