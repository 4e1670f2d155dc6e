//! Functions of the running kernel: search, types and disassembly.

use crate::api::kernel_service_client::KernelServiceClient;
use crate::api::{
    DescribeFunctionRequest, DescribeFunctionResponse, DisassembleFunctionRequest,
    DisassembleFunctionResponse, ListFunctionsRequest, ListFunctionsResponse, ProbeKind,
};
use crate::client::{Client, MAX_MESSAGE_BYTES};
use crate::error::Error;

impl Client {
    /// Shows the instructions of a function (`[MODULE:]NAME`, `NAME+OFFSET` or an address) as
    /// places for a probe of this kind. When several functions have the name, the answer has
    /// candidates instead.
    pub async fn disassemble_function(
        &self,
        function: &str,
        kind: ProbeKind,
    ) -> Result<DisassembleFunctionResponse, Error> {
        let request = DisassembleFunctionRequest { function: function.to_owned(), kind: kind.into() };
        self.call(request, async |request| self.kernel().disassemble_function(request).await).await
    }

    /// Describes the parameters and the return type of a function, and with a path the structure
    /// that a parameter leads to.
    pub async fn describe_function(
        &self,
        request: DescribeFunctionRequest,
    ) -> Result<DescribeFunctionResponse, Error> {
        self.call(request, async |request| self.kernel().describe_function(request).await).await
    }

    /// Finds functions by name, page by page. Page size and token of the request are not used. The
    /// answer has suggestions when it has no function.
    pub async fn list_functions(
        &self,
        mut request: ListFunctionsRequest,
    ) -> Result<ListFunctionsResponse, Error> {
        request.page_size = 10_000;
        request.page_token.clear();
        let mut all = ListFunctionsResponse::default();
        loop {
            let page = self.list_functions_page(request.clone()).await?;
            all.functions.extend(page.functions);
            all.suggestions = page.suggestions;
            if page.next_page_token.is_empty() {
                return Ok(all);
            }
            request.page_token = page.next_page_token;
        }
    }

    /// Finds one page of functions.
    async fn list_functions_page(
        &self,
        request: ListFunctionsRequest,
    ) -> Result<ListFunctionsResponse, Error> {
        self.call(request, async |request| self.kernel().list_functions(request).await).await
    }

    fn kernel(&self) -> KernelServiceClient<tonic::transport::Channel> {
        KernelServiceClient::new(self.channel()).max_decoding_message_size(MAX_MESSAGE_BYTES)
    }
}
