//! States the number of accepted plans, and the errors of the others, with `#` for numbers.

pub const TRANSFORMERS: &str = "
gpt: 435 one by one
15 x `k` is #; expected #, for a head cannot be split; `n` shards by heads
148 x `k` is #; expected #, for no products are summed over its inputs
22 x `m` is #; expected #, for a query needs the keys and values of every token
66 x `n` is #; expected #, for a row cannot be split, because it is scaled as a whole
22 x `n` is #; expected #, for a row's probabilities add up over all classes
92 x `operator` is n = #, k = #; expected equal shards of head/logits and of embedding/tokens, whose weights it shares: the degree of n of one is the degree of k of the other, here n = # and k = # of embedding/tokens, and at most one of n and k is sharded
80 together
llama: 449 one by one
15 x `k` is #; expected #, for a head cannot be split; `n` shards by heads
126 x `k` is #; expected #, for no products are summed over its inputs
22 x `m` is #; expected #, for a query needs the keys and values of every token
66 x `n` is #; expected #, for a row cannot be split, because it is scaled as a whole
22 x `n` is #; expected #, for a row's probabilities add up over all classes
80 together
bert: 567 one by one
15 x `k` is #; expected #, for a head cannot be split; `n` shards by heads
185 x `k` is #; expected #, for no products are summed over its inputs
9 x `k` is #; expected a divisor of the # rows of the table, for parts are equal
22 x `m` is #; expected #, for a query needs the keys and values of every token
88 x `n` is #; expected #, for a row cannot be split, because it is scaled as a whole
22 x `n` is #; expected #, for a row's probabilities add up over all classes
92 x `operator` is n = #, k = #; expected equal shards of head/logits and of embedding/tokens, whose weights it shares: the degree of n of one is the degree of k of the other, here n = # and k = # of embedding/tokens, and at most one of n and k is sharded
80 together
";

pub const OTHERS: &str = "
vgg-11: 29 one by one
23 x `k` is #; expected #, for no products are summed over its inputs
9 x `k` is #; expected a divisor of the # input channels, for parts are equal
3 x `k` is #; expected a divisor of the # inputs, for parts are equal
13 x `m` is #; expected a divisor of the # rows of the output and the # rows of the input, for parts are equal
30 x `m` is #; expected a divisor of the # rows, for parts are equal
8 x `n` is #; expected #, for a row's probabilities add up over all classes
4 x `n` is #; expected a divisor of the # channels, for parts are equal
4 x `n` is #; expected a divisor of the # columns, for parts are equal
4 x `n` is #; expected a divisor of the # output channels, for parts are equal
3 x `n` is #; expected a divisor of the # outputs, for parts are equal
20 together
resnet-18: 94 one by one
77 x `k` is #; expected #, for no products are summed over its inputs
18 x `k` is #; expected a divisor of the # input channels, for parts are equal
3 x `k` is #; expected a divisor of the # inputs, for parts are equal
39 x `m` is #; expected a divisor of the # rows of the output and the # rows of the input, for parts are equal
74 x `m` is #; expected a divisor of the # rows, for parts are equal
8 x `n` is #; expected #, for a row's probabilities add up over all classes
4 x `n` is #; expected a divisor of the # channels, for parts are equal
28 x `n` is #; expected a divisor of the # columns, for parts are equal
16 x `n` is #; expected a divisor of the # output channels, for parts are equal
3 x `n` is #; expected a divisor of the # outputs, for parts are equal
20 together
vit-b-16: 143 one by one
8 x `k` is #; expected #, for a head cannot be split; `n` shards by heads
52 x `k` is #; expected #, for no products are summed over its inputs
7 x `k` is #; expected a divisor of the # input channels, for parts are equal
16 x `k` is #; expected a divisor of the # rows of the table, for parts are equal
11 x `m` is #; expected #, for a query needs the keys and values of every token
5 x `m` is #; expected a divisor of the # rows of the output and the # rows of the input, for parts are equal
143 x `m` is #; expected a divisor of the # rows, for parts are equal
22 x `m` is #; expected a divisor of the # tokens, for parts are equal
24 x `n` is #; expected #, for a row cannot be split, because it is scaled as a whole
8 x `n` is #; expected #, for a row's probabilities add up over all classes
3 x `n` is #; expected a divisor of the # outputs, for parts are equal
20 together
dlrm: 54 one by one
38 x `k` is #; expected #, for no products are summed over its inputs
20 x `k` is #; expected a divisor of the # inputs, for parts are equal
7 x `k` is #; expected a divisor of the # rows of the table, for parts are equal
22 x `m` is #; expected #, for a sample is one row
99 x `m` is #; expected a divisor of the # rows, for parts are equal
8 x `n` is #; expected #, for a row's probabilities add up over all classes
8 x `n` is #; expected #, for every vector is combined with every other vector
15 x `n` is #; expected a divisor of the # columns, for parts are equal
15 x `n` is #; expected a divisor of the # outputs, for parts are equal
20 together
";
