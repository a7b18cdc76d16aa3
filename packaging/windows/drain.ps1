# A hook of the Forewarn agent: takes a web server out of service before an event, and restores it afterwards.
#
# The agent passes the step and the event in variables: FOREWARN_STEP, FOREWARN_EVENT_TYPE, FOREWARN_EVENT_NOT_BEFORE and more.
# An exit status other than 0 means that the step failed. With -File, an uncaught error also gives such a
# status. The agent may run an interrupted step again, so each step must do no harm when it runs twice.

Set-StrictMode -Version Latest
$ErrorActionPreference = 'Stop'

$Service = 'W3SVC'                                # the service to stop: IIS
$HealthFile = 'C:\inetpub\wwwroot\healthy.txt'    # the file that the load balancer checks
$DrainSeconds = 30                                # time for the load balancer to react and for open requests to end

switch ($env:FOREWARN_STEP) {
    'prepare' {
        if (Test-Path -LiteralPath $HealthFile) {
            Remove-Item -LiteralPath $HealthFile
            Start-Sleep -Seconds $DrainSeconds
        }
        Stop-Service -Name $Service
        Write-Output "$Service is stopped for $env:FOREWARN_EVENT_TYPE $env:FOREWARN_EVENT_ID"
    }
    { $_ -in 'recover', 'canceled' } {
        Start-Service -Name $Service
        Set-Content -LiteralPath $HealthFile -Value 'healthy' -Encoding Ascii
        Write-Output "$Service is back"
    }
    default {
        Write-Error "this hook is for prepare, recover and canceled, not for '$env:FOREWARN_STEP'"
    }
}
