//! Tests of control as a whole, over a kernel in memory and a simulated disk.

mod crash;
