// The function of a module that `lines.rs` loads: it gets the text that is written to a parameter of the module. What
// it calls is none, so that its code can be taken out of this object as it is.

#define keep(value) __asm__ volatile("nop" : "+r"(value))

struct entry {
	int number;
	unsigned int kind : 3;
	unsigned int urgent : 1;
	int level : 5;
};

struct parameter {
	const char *name;
};

static const char name[] __attribute__((section(".modinfo"), used)) = "name=kpd_lines";

// An inlined function, twice in the one that calls it.
static inline __attribute__((always_inline)) long twice(long value)
{
	long doubled = value * 2;
	keep(doubled);
	return doubled + 1;
}

long lines_called(const char *text, const struct parameter *parameter)
{
	volatile struct entry entries[3];
	long tens = text[0] - '0';
	long value = tens * 10 + text[1] - '0';
	unsigned char low = value * 101;
	keep(tens);
	keep(value);
	for (int number = 0; number < 3; number++) {
		entries[number].number = value + number;
		entries[number].kind = number + 4;
		entries[number].urgent = number & 1;
		entries[number].level = -number;
	}
	{
		long value = tens + 1000;
		keep(value);
		tens = value;
	}
	keep(value);
	value = twice(value);
	value = twice(value);
	keep(low);
	return entries[tens & 1].number * 0 + (parameter ? 0 : value);
}
