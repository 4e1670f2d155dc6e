//! Real Debian kernels in QEMU (emulated if KVM does not work), with the kprobe daemon inside.
//!
//! From the outside in: [`lab`] prepares a guest and boots it; [`kernels`] finds or fetches the
//! kernel, [`workspace`] builds the programs, [`initramfs`] packs them, [`machine`] runs QEMU and
//! talks to the agent in the guest, [`daemon`] starts kprobed there. Host tests use [`lab::Lab`]
//! and then the methods of [`machine::Machine`].

pub mod cache;
pub mod daemon;
pub mod disk;
pub mod ext4;
pub mod initramfs;
pub mod kernels;
pub mod lab;
pub mod machine;
pub mod packages;
pub mod progress;
pub mod protocol;
pub mod python;
pub mod systemd;
pub mod unpacked;
pub mod workspace;
pub mod write_log;

mod apt;
mod cpio;
mod modules;
mod slim;
