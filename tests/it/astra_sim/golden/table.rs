//! Answers for eight NPUs with 1 MiB in four chunks, links of 50 GB/s and 500 ns, and reductions at
//! 50 GB/s.

use super::*;

/// Times in ns at which the first and the last NPU finish: first on the unaware network, then on the aware network,
/// each with one and with four active chunks.
type GoldenTimesByNetworkAndChunks = [(u64, u64); 4];

#[rustfmt::skip]
pub const ONE_DIMENSION: &[(CollectiveOperation, DimensionTopology, &str, GoldenTimesByNetworkAndChunks)] = &[
    (AllReduce, Ring, "ring", [(117780, 117780), (29445, 29445), (117780, 117780), (39195, 39195)]),
    (AllReduce, Ring, "direct", [(24860, 24860), (6215, 6215), (57900, 57900), (49965, 49965)]),
    (AllReduce, Ring, "direct2", [(67600, 67600), (16900, 16900), (94080, 94080), (54035, 54035)]),
    (AllReduce, Ring, "halvingDoubling", [(86028, 86028), (21507, 21507), (110428, 110428), (51247, 54509)]),
    (AllReduce, FullyConnected, "ring", [(117780, 117780), (29445, 29445), (117780, 117780), (39195, 39195)]),
    (AllReduce, FullyConnected, "direct", [(16860, 16860), (4215, 4215), (16860, 16860), (6045, 6045)]),
    (AllReduce, FullyConnected, "direct2", [(51600, 51600), (12900, 12900), (51600, 51600), (14730, 14730)]),
    (AllReduce, FullyConnected, "halvingDoubling", [(70028, 70028), (17507, 17507), (70028, 70028), (24997, 24997)]),
    (AllReduce, Switch, "ring", [(145780, 145780), (36445, 36445), (179940, 179940), (48075, 48075)]),
    (AllReduce, Switch, "direct", [(20860, 20860), (5215, 5215), (47700, 47700), (35790, 35790)]),
    (AllReduce, Switch, "direct2", [(67600, 67600), (16900, 16900), (87120, 87120), (35790, 35790)]),
    (AllReduce, Switch, "halvingDoubling", [(82028, 82028), (20507, 20507), (116196, 116196), (45601, 45601)]),
    (AllGather, Ring, "ring", [(151016, 151016), (37754, 37754), (151016, 151016), (137216, 137216)]),
    (AllGather, Ring, "direct", [(27608, 27608), (6902, 6902), (199360, 199360), (195800, 195800)]),
    (AllGather, Ring, "direct2", [(94312, 94312), (23578, 23578), (261984, 261984), (240748, 240748)]),
    (AllGather, Ring, "halvingDoubling", [(150872, 150872), (37718, 37718), (248516, 248516), (181680, 206091)]),
    (AllGather, FullyConnected, "ring", [(151016, 151016), (37754, 37754), (151016, 151016), (137216, 137216)]),
    (AllGather, FullyConnected, "direct", [(21608, 21608), (5402, 5402), (21608, 21608), (20048, 20048)]),
    (AllGather, FullyConnected, "direct2", [(86312, 86312), (21578, 21578), (86312, 86312), (36224, 36224)]),
    (AllGather, FullyConnected, "halvingDoubling", [(142872, 142872), (35718, 35718), (142872, 142872), (94311, 94311)]),
    (AllGather, Switch, "ring", [(165016, 165016), (41254, 41254), (301712, 301712), (142598, 142598)]),
    (AllGather, Switch, "direct", [(23608, 23608), (5902, 5902), (160304, 160304), (142598, 142598)]),
    (AllGather, Switch, "direct2", [(94312, 94312), (23578, 23578), (172424, 172424), (142598, 142598)]),
    (AllGather, Switch, "halvingDoubling", [(148872, 148872), (37218, 37218), (285584, 285584), (157263, 157263)]),
    (ReduceScatter, Ring, "ring", [(86420, 86420), (21605, 21605), (86420, 86420), (23435, 23435)]),
    (ReduceScatter, Ring, "direct", [(18380, 18380), (4595, 4595), (36340, 36340), (26885, 26885)]),
    (ReduceScatter, Ring, "direct2", [(41680, 41680), (10420, 10420), (54280, 54280), (32275, 32275)]),
    (ReduceScatter, Ring, "halvingDoubling", [(54824, 54824), (13706, 13706), (67024, 67024), (29084, 29974)]),
    (ReduceScatter, FullyConnected, "ring", [(86420, 86420), (21605, 21605), (86420, 86420), (23435, 23435)]),
    (ReduceScatter, FullyConnected, "direct", [(12380, 12380), (3095, 3095), (12380, 12380), (4925, 4925)]),
    (ReduceScatter, FullyConnected, "direct2", [(33680, 33680), (8420, 8420), (33680, 33680), (10250, 10250)]),
    (ReduceScatter, FullyConnected, "halvingDoubling", [(46824, 46824), (11706, 11706), (46824, 46824), (19029, 19029)]),
    (ReduceScatter, Switch, "ring", [(100420, 100420), (25105, 25105), (117500, 117500), (31205, 31205)]),
    (ReduceScatter, Switch, "direct", [(14380, 14380), (3595, 3595), (31460, 31460), (20675, 20675)]),
    (ReduceScatter, Switch, "direct2", [(41680, 41680), (10420, 10420), (51440, 51440), (19855, 19855)]),
    (ReduceScatter, Switch, "halvingDoubling", [(52824, 52824), (13206, 13206), (69908, 69908), (24800, 24800)]),
    (AllToAll, Ring, "ring", [(125480, 125480), (31370, 31370), (125480, 125480), (68840, 68840)]),
    (AllToAll, Ring, "direct", [(10520, 10520), (2630, 2630), (28480, 28480), (24920, 24920)]),
    (AllToAll, Ring, "direct2", [(25960, 25960), (6490, 6490), (39840, 39840), (31420, 31420)]),
    (AllToAll, FullyConnected, "ring", [(125480, 125480), (31370, 31370), (125480, 125480), (68840, 68840)]),
    (AllToAll, FullyConnected, "direct", [(4520, 4520), (1130, 1130), (4520, 4520), (2960, 2960)]),
    (AllToAll, FullyConnected, "direct2", [(17960, 17960), (4490, 4490), (17960, 17960), (6320, 6320)]),
    (AllToAll, Switch, "ring", [(181480, 181480), (45370, 45370), (249800, 249800), (69950, 69950)]),
    (AllToAll, Switch, "direct", [(6520, 6520), (1630, 1630), (23600, 23600), (18710, 18710)]),
    (AllToAll, Switch, "direct2", [(25960, 25960), (6490, 6490), (35720, 35720), (18710, 18710)]),
];
