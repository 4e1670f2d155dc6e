//! HTTP/2 as an attacker speaks it: frames by hand, right or wrong.

/// The preface, and settings without a value.
pub(crate) fn hello() -> Vec<u8> {
    [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &frame(SETTINGS, 0, 0, &[])].concat()
}

/// The preface, with a window of no bytes: whatever the server answers, it cannot send it.
pub(crate) fn hello_without_window() -> Vec<u8> {
    let initial_window_size = [0, 4, 0, 0, 0, 0];
    [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &frame(SETTINGS, 0, 0, &initial_window_size)].concat()
}

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const CONTINUATION: u8 = 9;

const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// A frame (RFC 9113, section 4.1).
pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// An integer with a prefix of 7 bits, and a text after it (RFC 7541, section 5).
fn text(value: &[u8]) -> Vec<u8> {
    let mut coded = Vec::new();
    if value.len() < 127 {
        coded.push(u8::try_from(value.len()).unwrap());
    } else {
        coded.push(127);
        let mut rest = value.len() - 127;
        while rest >= 128 {
            coded.push(u8::try_from(rest % 128).unwrap() | 128);
            rest /= 128;
        }
        coded.push(u8::try_from(rest).unwrap());
    }
    coded.extend_from_slice(value);
    coded
}

/// The headers of a call, as a client of this library sends them.
fn headers(path: &str) -> Vec<u8> {
    headers_to(path, "localhost")
}

/// The headers of a call, from the static table and as literals.
fn headers_to(path: &str, authority: &str) -> Vec<u8> {
    let mut block = vec![0x83, 0x86, 0x04];
    block.extend(text(path.as_bytes()));
    block.push(0x01);
    block.extend(text(authority.as_bytes()));
    block.extend([0x0f, 0x10]);
    block.extend(text(b"application/grpc"));
    block.push(0);
    block.extend([text(b"te"), text(b"trailers")].concat());
    block
}

/// The headers of a call.
pub(crate) fn call(stream: u32, path: &str) -> Vec<u8> {
    frame(HEADERS, END_HEADERS, stream, &headers(path))
}

/// The headers of a call that names another server than clients of this library.
pub(crate) fn call_to(stream: u32, path: &str, authority: &str) -> Vec<u8> {
    frame(HEADERS, END_HEADERS, stream, &headers_to(path, authority))
}

/// A message, which ends the request.
pub(crate) fn message(stream: u32, message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    frame(DATA, END_STREAM, stream, &[&[0], &length[..], message].concat())
}

/// The end of a call that is not wanted any more.
pub(crate) fn reset(stream: u32) -> Vec<u8> {
    frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes())
}

/// A call with so many headers of 8 KiB each, over as many frames.
pub(crate) fn huge_call(stream: u32, path: &str, many: usize) -> Vec<u8> {
    let mut frames = frame(HEADERS, 0, stream, &headers(path));
    for number in 0..many {
        let name = format!("x-{number}");
        let one = [&[0][..], &text(name.as_bytes()), &text(&vec![b'v'; 8 << 10])].concat();
        let flags = if number + 1 == many { END_HEADERS } else { 0 };
        frames.extend(frame(CONTINUATION, flags, stream, &one));
    }
    frames
}
