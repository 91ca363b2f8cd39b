//! Runs `pattern.ptx` on an interpreter of the few instructions that it uses.

use std::collections::BTreeMap;

use super::{BLOCK_THREADS, PTX};
use crate::pattern::pattern_word;

/// One kernel: its instructions, and where its labels are.
struct Program {
    parameters: Vec<String>,
    lines: Vec<Vec<String>>,
    labels: BTreeMap<String, usize>,
}

impl Program {
    fn parse(kernel: &str) -> Program {
        let text: String =
            PTX.lines().map(|line| line.split("//").next().unwrap().to_owned() + "\n").collect();
        let (_, text) = text.split_once(&format!(".entry {kernel}(")).unwrap();
        let (head, text) = text.split_once(')').unwrap();
        let words = |text: &str| -> Vec<String> {
            text.split([' ', ',', '\n']).filter(|w| !w.is_empty()).map(str::to_owned).collect()
        };
        let parameters =
            words(head).into_iter().filter(|w| !w.starts_with('.')).collect::<Vec<_>>();
        let body = text.split_once('{').unwrap().1.split_once('}').unwrap().0;
        let mut program = Program { parameters, lines: Vec::new(), labels: BTreeMap::new() };
        for statement in body.split(';') {
            let mut statement = statement;
            while let Some((label, rest)) = statement.split_once(':') {
                program.labels.insert(label.trim().to_owned(), program.lines.len());
                statement = rest;
            }
            let line = words(statement);
            if line.first().is_some_and(|word| word != ".reg") {
                program.lines.push(line);
            }
        }
        program
    }

    /// Runs all threads of a launch, one after the other.
    fn launch(&self, blocks: u64, threads: u64, arguments: &[u64], memory: &mut [u64]) {
        assert_eq!(self.parameters.len(), arguments.len());
        for block in 0..blocks {
            for thread in 0..threads {
                let mut registers = BTreeMap::from(
                    [("%ctaid.x", block), ("%ntid.x", threads), ("%tid.x", thread)]
                        .map(|(name, value)| (name.to_owned(), value)),
                );
                registers.insert("%nctaid.x".to_owned(), blocks);
                for (name, &value) in self.parameters.iter().zip(arguments) {
                    registers.insert(format!("[{name}]"), value);
                }
                self.run(&mut registers, memory);
            }
        }
    }

    fn run(&self, registers: &mut BTreeMap<String, u64>, memory: &mut [u64]) {
        let mut next = 0;
        loop {
            let mut line = self.lines[next].as_slice();
            next += 1;
            if let Some(condition) = line[0].strip_prefix('@') {
                if registers[condition] == 0 {
                    continue;
                }
                line = &line[1..];
            }
            match line[0].as_str() {
                "ret" => return,
                "bra" => next = self.labels[&line[1]],
                "st.global.u64" => {
                    let word = value(registers, &line[2]);
                    *cell(registers, memory, &line[1]) = word;
                }
                "ld.global.u64" => {
                    let word = *cell(registers, memory, &line[2]);
                    registers.insert(line[1].clone(), word);
                }
                "red.global.add.u64" => {
                    let word = value(registers, &line[2]);
                    *cell(registers, memory, &line[1]) += word;
                }
                operation => {
                    let inputs: Vec<u64> =
                        line[2..].iter().map(|word| value(registers, word)).collect();
                    registers.insert(line[1].clone(), compute(operation, &inputs));
                }
            }
        }
    }
}

/// The word of memory that `[%register]` names. Memory begins at address 0.
fn cell<'a>(
    registers: &BTreeMap<String, u64>,
    memory: &'a mut [u64],
    operand: &str,
) -> &'a mut u64 {
    let address = registers[operand.trim_matches(['[', ']'])];
    assert!(address.is_multiple_of(8), "{operand} is not aligned");
    &mut memory[(address / 8) as usize]
}

fn value(registers: &BTreeMap<String, u64>, operand: &str) -> u64 {
    match operand.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).unwrap(),
        None => operand.parse().unwrap_or_else(|_| registers[operand]),
    }
}

fn compute(operation: &str, inputs: &[u64]) -> u64 {
    let narrow = |index: usize| u64::from(inputs[index] as u32);
    match operation {
        "ld.param.u64" | "cvta.to.global.u64" | "mov.u32" | "mov.u64" | "cvt.u64.u32" => inputs[0],
        "add.u64" => inputs[0].wrapping_add(inputs[1]),
        "mul.lo.u64" => inputs[0].wrapping_mul(inputs[1]),
        "mad.lo.u64" => inputs[0].wrapping_mul(inputs[1]).wrapping_add(inputs[2]),
        "mul.wide.u32" => narrow(0) * narrow(1),
        "mad.wide.u32" => (narrow(0) * narrow(1)).wrapping_add(inputs[2]),
        "shl.b64" => inputs[0] << inputs[1],
        "shr.u64" => inputs[0] >> inputs[1],
        "xor.b64" => inputs[0] ^ inputs[1],
        "setp.ge.u64" => u64::from(inputs[0] >= inputs[1]),
        "setp.lt.u64" => u64::from(inputs[0] < inputs[1]),
        "setp.eq.u64" => u64::from(inputs[0] == inputs[1]),
        "setp.ne.u64" => u64::from(inputs[0] != inputs[1]),
        "selp.u64" => inputs[if inputs[2] != 0 { 0 } else { 1 }],
        other => panic!("the interpreter does not know {other}"),
    }
}

/// Words before the pattern, behind it, and for the count.
const MARGIN: usize = 3;
const UNTOUCHED: u64 = 0xdead;

fn memory_of(word_count: usize) -> Vec<u64> {
    vec![UNTOUCHED; MARGIN + word_count + MARGIN]
}

/// Shapes and sizes with threads that have nothing, some, one round of four, and more.
const CASES: [(u64, u64, usize); 8] = [
    (1, 1, 1),
    (1, 1, 9),
    (2, 4, 3),
    (2, 4, 8),
    (2, 4, 31),
    (2, 4, 32),
    (3, 5, 200),
    (1, BLOCK_THREADS as u64, 1000),
];

#[test]
fn the_kernel_writes_the_pattern_and_nothing_else() {
    let program = Program::parse("write_pattern");
    for (blocks, threads, word_count) in CASES {
        for seed in [0, 1_234_567, u64::MAX] {
            let mut memory = memory_of(word_count);
            let arguments = [MARGIN as u64 * 8, word_count as u64, seed];
            program.launch(blocks, threads, &arguments, &mut memory);
            let mut expect = memory_of(word_count);
            for index in 0..word_count {
                expect[MARGIN + index] = pattern_word(seed, index as u64);
            }
            assert_eq!(memory, expect, "{blocks} x {threads}, {word_count} words of {seed}");
        }
    }
}

#[test]
fn the_kernel_counts_each_word_that_differs_once() {
    let program = Program::parse("check_pattern");
    for (blocks, threads, word_count) in CASES {
        let seed = 99;
        let mut good = memory_of(word_count);
        for index in 0..word_count {
            good[MARGIN + index] = pattern_word(seed, index as u64);
        }
        let count_at = (MARGIN + word_count) as u64 * 8;
        let arguments = [MARGIN as u64 * 8, word_count as u64, seed, count_at];
        let counted = |damaged: &[usize], seed: u64| {
            let mut memory = good.clone();
            memory[MARGIN + word_count] = 1000;
            damaged.iter().for_each(|&index| memory[MARGIN + index] ^= 1 << 63);
            let mut expect = memory.clone();
            let mut arguments = arguments;
            arguments[2] = seed;
            program.launch(blocks, threads, &arguments, &mut memory);
            let count = memory[MARGIN + word_count] - 1000;
            expect[MARGIN + word_count] += count;
            assert_eq!(memory, expect, "only the count may change");
            count
        };
        assert_eq!(counted(&[], seed), 0);
        for index in 0..word_count.min(40) {
            assert_eq!(counted(&[index], seed), 1, "{blocks} x {threads}: {index}");
        }
        let last = word_count - 1;
        assert_eq!(counted(&[last], seed), 1);
        let all: Vec<usize> = (0..word_count).collect();
        assert_eq!(counted(&all, seed), word_count as u64);
        assert_eq!(counted(&[], seed + 1), word_count as u64);
    }
}
