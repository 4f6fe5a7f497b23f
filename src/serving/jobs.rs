//! Translates requests to jobs of vector products, which form a chain or an acyclic graph, as in LIGHTSPEED's model.
//!
//! A job is a set of identical *tasks*, such as the work of one layer. A task is a product of two vectors. All tasks of
//! a job have vectors of the same length. Jobs depend only on earlier jobs. Job sizes are derived from a model's
//! operators (`model::OperatorAxesAndTensorsSpec`):
//!
//! | operator | tasks | length |
//! |---|---|---|
//! | linear | rows x outputs | inputs |
//! | attention, keys | heads x tokens x tokens | width of a head |
//! | attention, values | heads x tokens x width of a head | tokens |
//! | convolution, by output | elements of the output | kernel x channels per group |
//! | convolution, by kernel | elements of the output x channels per group | kernel |
//! | interaction | pairs of vectors | width |
//! | table, if tables count | width | rows |
//!
//! All operators without products (norms, activations, sums, pools) take no time, as in LIGHTSPEED's thesis. If table
//! lookups count as products, the products of a feature interaction do not. The published count for DLRM
//! (2,505,926,848) includes the lookups, but not the products of the interaction.

use chakram_workloads::model::{
    LayerOperator, Model, ModelLayer, OperatorAxesAndTensorsSpec, OperatorInputSource,
};

/// Identical tasks that become ready together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EqualVectorProductTasks {
    /// Number of tasks.
    pub tasks: u64,
    /// Length of a task's two vectors, in elements. Also the number of multiplications per task.
    pub length: u64,
}

impl EqualVectorProductTasks {
    /// Returns the number of multiplications of all tasks.
    pub fn multiplication_count(&self) -> u64 {
        self.tasks.saturating_mul(self.length)
    }
}

/// How a convolution is divided into vector products.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConvolutionDivisionIntoVectorProducts {
    /// One product per output. Its length is kernel height x kernel width x channels (Williams, 2023).
    #[default]
    Outputs,
    /// One product per output and kernel channel. Its length is kernel height x kernel width (Zhong et al., 2023).
    Kernels,
}

impl ConvolutionDivisionIntoVectorProducts {
    /// All conventions, with their names in files.
    pub const ALL: [(Self, &'static str); 2] =
        [(Self::Outputs, "outputs"), (Self::Kernels, "kernels")];
}

/// Rule that decides which independent operators of a layer run in parallel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConcurrentOperatorsRule {
    /// Tables run in parallel with the chain of operators until an operator joins them (Zhong et al.,
    /// 2023).
    #[default]
    Tables,
    /// Tables, and convolutions on the skip path around a block, run in parallel with the chain of
    /// operators.
    Parallel,
    /// All operators of a request run in order.
    InOrder,
}

impl ConcurrentOperatorsRule {
    /// All rules, with their names in files.
    pub const ALL: [(Self, &'static str); 3] = [
        (Self::Tables, "tables"),
        (Self::Parallel, "parallel"),
        (Self::InOrder, "in-order"),
    ];
}

/// How operators are translated to jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OperatorToJobLoweringRules {
    /// How convolutions are divided into vector products.
    pub convolution: ConvolutionDivisionIntoVectorProducts,
    /// If true, each attention head has its own jobs (queries, keys, values and their products), and the heads run in
    /// parallel. Otherwise each operator is one job, and the jobs form a chain.
    pub heads: bool,
    /// Rule that decides which operators run in parallel.
    pub branches: ConcurrentOperatorsRule,
    /// Minimum vector length. Shorter vectors are merged; 0 means no merging.
    pub merge: u64,
    /// True if a table lookup counts as a product with a one-hot vector, as in published counts.
    pub tables: bool,
}

/// Jobs with their dependencies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GraphOfVectorProductJobs {
    jobs: Vec<EqualVectorProductTasks>,
    /// For each job, the index of its first dependency in `sources`. The last entry is the length
    /// of `sources`.
    offsets: Vec<u32>,
    sources: Vec<u32>,
    /// Number of layers of the model that have jobs.
    layers: u32,
}

impl Default for GraphOfVectorProductJobs {
    fn default() -> Self {
        Self {
            jobs: Vec::new(),
            offsets: vec![0],
            sources: Vec::new(),
            layers: 0,
        }
    }
}

impl GraphOfVectorProductJobs {
    /// Adds a job that depends on the earlier jobs `after`, and returns its index.
    pub fn add_job(&mut self, job: EqualVectorProductTasks, after: &[u32]) -> u32 {
        let number = self.jobs.len() as u32;
        self.jobs.push(job);
        self.sources.extend_from_slice(after);
        self.offsets.push(self.sources.len() as u32);
        number
    }

    /// Returns all jobs; each job comes after its dependencies.
    pub fn jobs(&self) -> &[EqualVectorProductTasks] {
        &self.jobs
    }

    /// Returns the jobs on which `job` depends.
    pub fn dependencies_of(&self, job: u32) -> &[u32] {
        let at = job as usize;
        &self.sources[self.offsets[at] as usize..self.offsets[at + 1] as usize]
    }

    /// Returns true if each job depends only on the previous job, so that no two jobs run at the same
    /// time.
    pub fn is_chain(&self) -> bool {
        (0..self.jobs.len() as u32).all(|job| match job.checked_sub(1) {
            None => self.dependencies_of(job).is_empty(),
            Some(before) => self.dependencies_of(job) == [before],
        })
    }

    /// Returns how many of the model's layers have jobs. If a scenario lists the model's jobs instead of naming a
    /// model, each listed job counts as a layer.
    pub fn layer_count(&self) -> u32 {
        self.layers.max(1)
    }

    /// Sets the number of layers.
    pub fn set_layer_count(&mut self, layers: u32) {
        self.layers = layers;
    }

    /// Returns the number of multiplications of a request.
    pub fn multiplication_count(&self) -> u64 {
        let each = self
            .jobs
            .iter()
            .map(EqualVectorProductTasks::multiplication_count);
        each.fold(0, u64::saturating_add)
    }

    /// Returns the number of tasks of a request.
    pub fn tasks_per_request(&self) -> u64 {
        let each = self.jobs.iter().map(|job| job.tasks);
        each.fold(0, u64::saturating_add)
    }

    /// Converts the operators of `model` to jobs.
    pub fn of_model(model: &Model, lowering: OperatorToJobLoweringRules) -> Self {
        let mut emitter = ModelJobGraphBuilder {
            graph: Self::default(),
            lowering,
            frontier: Vec::new(),
            entry: Vec::new(),
            beside: Vec::new(),
            fork: Vec::new(),
            around: Vec::new(),
        };
        let mut layers = 0;
        for layer in &model.layers {
            let before = emitter.graph.jobs.len();
            emitter.emit_layer(layer);
            layers += u32::from(emitter.graph.jobs.len() > before);
        }
        emitter.graph.layers = layers;
        emitter.graph
    }
}

/// Builds the jobs of a model, operator by operator.
struct ModelJobGraphBuilder {
    graph: GraphOfVectorProductJobs,
    lowering: OperatorToJobLoweringRules,
    /// Jobs that the next job of the chain depends on.
    frontier: Vec<u32>,
    /// Jobs that new branches of the current layer depend on.
    entry: Vec<u32>,
    /// Jobs that run in parallel with the chain until an operator joins them.
    beside: Vec<u32>,
    /// Jobs that both a block and its skip path depend on.
    fork: Vec<u32>,
    around: Vec<u32>,
}

impl ModelJobGraphBuilder {
    fn push_job(&mut self, tasks: u64, length: u64, after: &[u32]) -> u32 {
        let mut job = EqualVectorProductTasks { tasks, length };
        let merge = self.lowering.merge;
        if length < merge {
            let all = u128::from(tasks) * u128::from(length);
            job = EqualVectorProductTasks {
                tasks: u64::try_from(all.div_ceil(merge.into())).unwrap_or(u64::MAX),
                length: merge,
            };
        }
        self.graph.add_job(job, after)
    }

    /// Adds a job that depends on the frontier. It becomes the new frontier.
    fn push_chained_job(&mut self, tasks: u64, length: u64) {
        if tasks > 0 && length > 0 {
            let after = std::mem::take(&mut self.frontier);
            let job = self.push_job(tasks, length, &after);
            self.frontier = vec![job];
        }
    }

    fn emit_layer(&mut self, layer: &ModelLayer) {
        let works = layer
            .operators
            .iter()
            .map(|one| one.work.to_axes_and_tensors());
        let works: Vec<OperatorAxesAndTensorsSpec> = works.collect();
        self.entry.clone_from(&self.frontier);
        self.begin_skip_block();
        let mut at = 0;
        while let Some(work) = works.get(at) {
            let operator = &layer.operators[at];
            at += 1;
            let behind = works.get(at).filter(|behind| behind.is_attention());
            if let (true, true, Some(behind)) = (
                self.lowering.heads,
                work.is_matrix_product_without_windows(),
                behind,
            ) {
                self.emit_attention_head_jobs(work, behind);
                at += 1;
            } else {
                self.emit_operator_on_branch(operator, work);
            }
        }
        self.make_next_job_await_parallel_jobs();
    }

    /// Adds the jobs of an operator. They depend on the jobs that produce the operator's inputs.
    fn emit_operator_on_branch(
        &mut self,
        operator: &LayerOperator,
        work: &OperatorAxesAndTensorsSpec,
    ) {
        match (self.lowering.branches, work.role) {
            (ConcurrentOperatorsRule::InOrder, _) => self.emit_operator_jobs(work),
            (ConcurrentOperatorsRule::Parallel, _) if operator.around => {
                std::mem::swap(&mut self.frontier, &mut self.around);
                self.emit_operator_jobs(work);
                std::mem::swap(&mut self.frontier, &mut self.around);
            }
            (_, OperatorInputSource::Table) => {
                let before = std::mem::replace(&mut self.frontier, self.entry.clone());
                self.move_to_parallel_jobs(before);
                self.emit_operator_jobs(work);
            }
            (_, OperatorInputSource::Beside) => {
                let chain = std::mem::replace(&mut self.frontier, self.entry.clone());
                self.emit_operator_jobs(work);
                let own = std::mem::replace(&mut self.frontier, chain);
                self.move_to_parallel_jobs(own);
            }
            (_, OperatorInputSource::Join | OperatorInputSource::Collect) => {
                if self.around != self.fork {
                    let around = std::mem::take(&mut self.around);
                    self.move_to_parallel_jobs(around);
                }
                self.make_next_job_await_parallel_jobs();
                self.emit_operator_jobs(work);
                self.begin_skip_block();
            }
            (_, OperatorInputSource::Next) => self.emit_operator_jobs(work),
        }
    }

    /// Begins a block and its skip path after the current frontier.
    fn begin_skip_block(&mut self) {
        self.fork.clone_from(&self.frontier);
        self.around.clone_from(&self.frontier);
    }

    /// Moves this layer's jobs from the chain to the parallel jobs.
    fn move_to_parallel_jobs(&mut self, jobs: Vec<u32>) {
        let own = jobs.into_iter().filter(|job| !self.entry.contains(job));
        self.beside.extend(own);
    }

    /// Makes the next job also depend on all parallel jobs.
    fn make_next_job_await_parallel_jobs(&mut self) {
        if self.beside.is_empty() {
            return;
        }
        if self.frontier == self.entry {
            self.frontier.clear();
        }
        self.frontier.append(&mut self.beside);
        self.frontier.sort_unstable();
        self.frontier.dedup();
    }

    fn emit_operator_jobs(&mut self, work: &OperatorAxesAndTensorsSpec) {
        let count = |axes: &str| u64::try_from(work.tensor_element_count(axes)).unwrap_or(u64::MAX);
        let counts_tables = self.lowering.tables;
        if work.role == OperatorInputSource::Collect && counts_tables {
            return;
        }
        for product in work.products.iter().filter(|one| one.multiplies) {
            let (result, over) = (count(product.result), product.over);
            match (work.windows, self.lowering.convolution) {
                (Some(_), ConvolutionDivisionIntoVectorProducts::Kernels) => {
                    let (channels, kernel) = over.split_at(1);
                    self.push_chained_job(result.saturating_mul(count(channels)), count(kernel));
                }
                _ => self.push_chained_job(result, count(over)),
            }
        }
        if work.looks_up_table_rows() && counts_tables {
            self.push_chained_job(work.extent_of_axis('n'), work.extent_of_axis('k'));
        }
    }

    /// Adds the jobs for each head's queries, keys and values, and for their products.
    fn emit_attention_head_jobs(
        &mut self,
        projection: &OperatorAxesAndTensorsSpec,
        attention: &OperatorAxesAndTensorsSpec,
    ) {
        let inputs = projection.extent_of_axis('k');
        let [tokens, heads, kv_heads, width] =
            ['m', 'n', 'g', 'w'].map(|letter| attention.extent_of_axis(letter));
        let before = std::mem::take(&mut self.frontier);
        let rows = tokens.saturating_mul(width);
        let shared = heads / kv_heads.max(1);
        let mut pair = [0, 0];
        for head in 0..heads {
            let query = self.push_job(rows, inputs, &before);
            // Heads that share keys and values are consecutive.
            if head % shared.max(1) == 0 {
                pair = [(); 2].map(|()| self.push_job(rows, inputs, &before));
            }
            let [key, value] = pair;
            let scores = self.push_job(tokens.saturating_mul(tokens), width, &[query, key]);
            let result = self.push_job(rows, tokens, &[scores, value]);
            self.frontier.push(result);
        }
    }
}

#[cfg(test)]
mod tests;
